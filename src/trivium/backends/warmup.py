"""`model_warmup`: requests made up by the configuration, run on every instance before the model answers anybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trivium.backends.tensor_adapters import Adapter
from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.backends.tensor_null import NOBODY
from trivium.backends.tensor_values import file_data, random_data, zero_data
from trivium.batching.sequence import LiveSequence
from trivium.errors import ModelLoadError, TriviumError
from trivium.execution import ModelInstance
from trivium.infer import DataType, InferRequest, Tensor
from trivium.protocol.datatypes import wire_datatype
from trivium.protocol.model_config import ModelConfig, ModelWarmup

WARMUP_FOLDER = "warmup"
"""Beside the versions; `input_data_file` names a file in it."""


def warmup_batches(config: ModelConfig, model_path: Path) -> list[tuple[ModelWarmup, list[InferRequest]]]:
    """Each sample with the requests of one batch. Raises `ModelLoadError` for data that can't be had."""
    return [(sample, _requests(config, sample, model_path)) for sample in config.model_warmup]


async def warm_up(config: ModelConfig, instances: Sequence[ModelInstance], adapters: Sequence[Adapter], model_path: Path) -> None:
    """Raises `ModelLoadError` if a sample fails. Leaves no trace in the model's statistics."""
    for sample, requests in warmup_batches(config, model_path):
        for instance in instances:
            for _ in range(max(1, sample.count)):
                batch = [_Warmup(request) for request in requests]
                for warmup in batch:
                    for adapter in adapters:
                        adapter.prepare(warmup)
                await instance.execute(batch)
                for warmup in batch:
                    if warmup.failure is not None:
                        raise ModelLoadError(f"failed to run warmup sample '{sample.name}' for model '{config.name}': {warmup.failure.message}")


class _Warmup(TensorInference):
    """Answers to nobody."""

    __slots__ = ("failure",)

    def __init__(self, request: InferRequest) -> None:
        super().__init__(NOBODY, request, arrival_ns=0, batch_size=1, shape_key=None)
        self.stage = Stage.RUNNING
        self.place = LiveSequence[TensorInference](request.correlation_id, 0)
        self.failure: TriviumError | None = None

    def fail(self, error: TriviumError) -> None:
        self.stage = Stage.ENDED
        self.failure = error


def _requests(config: ModelConfig, sample: ModelWarmup, model_path: Path) -> list[InferRequest]:
    """`batch_size` requests of one row; for a model that doesn't batch, one."""
    if sample.batch_size > max(1, config.max_batch_size):
        raise ModelLoadError(f"warmup sample '{sample.name}' has a batch_size of {sample.batch_size}, the model takes {config.max_batch_size}")
    inputs: list[Tensor] = []
    for name, wanted in sample.inputs.items():
        datatype = wire_datatype(wanted.data_type)
        dims = tuple(wanted.dims)
        if any(size < 0 for size in dims):
            raise ModelLoadError(f"warmup sample '{sample.name}' must give every dimension of input '{name}'")
        shape = (1, *dims) if config.max_batch_size > 0 else dims
        inputs.append(Tensor(name, datatype, shape, _data(wanted, datatype, dims, model_path)))
    sequence = config.HasField("sequence_batching")
    request = InferRequest(
        model=config.name, inputs=inputs, id=sample.name, correlation_id=int(sequence), sequence_start=sequence, sequence_end=sequence
    )
    return [request] * max(1, sample.batch_size)


def _data(wanted: ModelWarmup.Input, datatype: DataType, dims: tuple[int, ...], model_path: Path) -> bytes:
    if wanted.input_data_file:
        folder = (model_path / WARMUP_FOLDER).resolve()
        path = (folder / wanted.input_data_file).resolve()
        if not path.is_relative_to(folder):
            raise ModelLoadError(f"the warmup file {wanted.input_data_file!r} lies outside the model's folder")
        return file_data(path, datatype, dims)
    return random_data(datatype, dims) if wanted.random_data else zero_data(datatype, dims)

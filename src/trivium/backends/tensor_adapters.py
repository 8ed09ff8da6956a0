"""What lies between the request as the client made it and the request as the model sees it: shapes, controls of sequences, their state."""

from __future__ import annotations

from typing import Protocol

import msgspec

from trivium.backends.tensor_inference import TensorInference
from trivium.errors import GenerationFailed
from trivium.infer import InferRequest, InferResponse, Tensor
from trivium.protocol.model_config import ModelConfig, ModelInput, ModelOutput


class Adapter(Protocol):
    def check(self, request: InferRequest) -> None:
        """Raises `InvalidRequest` for a request that `prepare` couldn't work with."""
        ...

    def prepare(self, inference: TensorInference) -> None:
        """Replace `inference.request`, which is about to run. The original is left as it is."""
        ...

    def restore(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        """What the client gets. May change `response`. Raises `TriviumError` for an answer that can't be right."""
        ...


class ReshapeAdapter:
    """`reshape` of inputs and outputs: the same elements, in other dimensions."""

    def __init__(self, inputs: dict[str, Reshape], outputs: dict[str, Reshape]) -> None:
        self._inputs = inputs
        self._outputs = outputs

    def check(self, request: InferRequest) -> None:
        """Shapes were checked already."""

    def prepare(self, inference: TensorInference) -> None:
        request = inference.request
        inference.request = msgspec.structs.replace(request, inputs=[_reshaped(tensor, self._inputs) for tensor in request.inputs])

    def restore(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        response.outputs = [_reshaped(tensor, self._outputs) for tensor in response.outputs]
        return response


class Reshape:
    """From one shape to another; both have their -1s in the same order, with the same number of elements between them."""

    def __init__(self, source: tuple[int, ...], target: tuple[int, ...], *, batches: bool) -> None:
        self._source = (-1, *source) if batches else source
        self._target = (-1, *target) if batches else target

    def __call__(self, tensor: Tensor) -> Tensor:
        """Raises `GenerationFailed` for a tensor of another shape: requests were checked before, so a model made it."""
        shape = tensor.shape
        if len(shape) != len(self._source) or any(size not in (-1, got) for size, got in zip(self._source, shape, strict=True)):
            raise GenerationFailed(f"unexpected shape for output '{tensor.name}'. Expected {list(self._source)}, got {list(shape)}")
        free = iter([got for size, got in zip(self._source, shape, strict=True) if size == -1])
        return Tensor(tensor.name, tensor.datatype, tuple(next(free) if size == -1 else size for size in self._target), tensor.data)


def reshape_adapter(config: ModelConfig) -> ReshapeAdapter | None:
    """None: the configuration reshapes nothing."""
    batches = config.max_batch_size > 0

    def dims(tensor: ModelInput | ModelOutput) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(tensor.dims), tuple(tensor.reshape.shape)

    inputs = {tensor.name: Reshape(*dims(tensor), batches=batches) for tensor in config.input if tensor.HasField("reshape")}
    outputs = {tensor.name: Reshape(*reversed(dims(tensor)), batches=batches) for tensor in config.output if tensor.HasField("reshape")}
    return ReshapeAdapter(inputs, outputs) if inputs or outputs else None


def _reshaped(tensor: Tensor, reshapes: dict[str, Reshape]) -> Tensor:
    reshape = reshapes.get(tensor.name)
    return tensor if reshape is None else reshape(tensor)

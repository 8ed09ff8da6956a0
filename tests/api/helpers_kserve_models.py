"""A repository like the one the recorded tritonserver served, and in-process functions in place of its Python models."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.backends.tensor_base import ModelSignature
from trivium.backends.tensor_registry import build_model, create_tensor_model
from trivium.errors import GenerationFailed, InvalidRequest, TriviumError
from trivium.execution import Execution, ExecutionTimes
from trivium.infer import DataType, InferResponse, Tensor
from trivium.protocol.model_config import ModelConfig
from trivium.repository.plan import ModelPlan
from trivium.repository.repository import ModelRepository, RepositoryOptions

IDENTITY = """
name: "{name}"
backend: "python"
max_batch_size: 64
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}
"""

CONFIGS = {
    "identity": IDENTITY.format(name="identity", more=""),
    "identity_dyn": IDENTITY.format(name="identity_dyn", more="dynamic_batching { max_queue_delay_microseconds: 100 }"),
    "fixed2ms": IDENTITY.format(name="fixed2ms", more=""),
    "fixed2ms_dyn": IDENTITY.format(name="fixed2ms_dyn", more="dynamic_batching { }"),
    "fixed2ms_qp": IDENTITY.format(name="fixed2ms_qp", more="dynamic_batching { default_queue_policy { max_queue_size: 1000 } }"),
    "fixed2ms_prio": IDENTITY.format(name="fixed2ms_prio", more="dynamic_batching { priority_levels: 2 default_priority_level: 1 }"),
    "ens": """
name: "ens" platform: "ensemble" max_batch_size: 64
input [ { name: "X" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  { model_name: "identity" model_version: -1 input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "MID" } },
  { model_name: "identity_dyn" model_version: -1 input_map { key: "INPUT0" value: "MID" } output_map { key: "OUTPUT0" value: "Y" } } ] }
""",
    "repeat_decoupled": """
name: "repeat_decoupled" backend: "python" max_batch_size: 0
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true } instance_group [ { kind: KIND_CPU count: 1 } ]
""",
}
"""The recorded server's models."""

TYPED = """
name: "{name}" backend: "python"
input [ {{ name: "IN" data_type: {data_type} dims: [ -1 ] }} ] output [ {{ name: "OUT" data_type: {data_type} dims: [ -1 ] }} ]
"""

MORE_CONFIGS = {
    **{
        f"echo_{kind.lower()}": TYPED.format(name=f"echo_{kind.lower()}", data_type=f"TYPE_{kind}")
        for kind in [
            "BOOL",
            "UINT8",
            "UINT16",
            "UINT32",
            "UINT64",
            "INT8",
            "INT16",
            "INT32",
            "INT64",
            "FP16",
            "FP32",
            "FP64",
            "BF16",
            "STRING",
        ]
    },
    "slow": TYPED.format(name="slow", data_type="TYPE_FP32"),
    "failing": TYPED.format(name="failing", data_type="TYPE_FP32"),
    "params": """
name: "params" backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
""",
    "labelled": """
name: "labelled" backend: "python" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" } ]
""",
    "accumulate": """
name: "accumulate" backend: "python" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
""",
}


def write_repository(folder: Path, configs: dict[str, str]) -> None:
    for name, text in configs.items():
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(text)
        (folder / name / "1" / "model.py").touch()
    if "labelled" in configs:
        (folder / "labelled" / "labels.txt").write_text("cat\ndog\nbird\n")


# -- models -----------------------------------------------------------------------------------------------------------------------

Compute = Callable[[Execution], Awaitable[None]]


class FunctionInstance:
    """A `ModelInstance` that calls a function for each request of a batch."""

    is_alive = True
    max_in_flight = 1

    def __init__(self, name: str, compute: Compute, batch_delay_s: float) -> None:
        self.name = name
        self._compute = compute
        self._batch_delay_s = batch_delay_s

    async def wait_alive(self) -> None:
        return

    async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
        if self._batch_delay_s:
            await asyncio.sleep(self._batch_delay_s)
        for execution in batch:
            await self._compute(execution)
        return ExecutionTimes(input_ns=1000, infer_ns=2000, output_ns=1000)

    async def close(self) -> None:
        return


def _answer(execution: Execution, tensor: Tensor) -> None:
    request = execution.request
    execution.respond(InferResponse(model=request.model, version="1", id=request.id, outputs=[tensor]))


async def _identity(execution: Execution) -> None:
    tensor = execution.request.inputs[0]
    _answer(execution, Tensor(tensor.name.replace("IN", "OUT", 1), tensor.datatype, tensor.shape, tensor.data))


async def _repeat(execution: Execution) -> None:
    request = execution.request
    for index in range(struct.unpack("<i", request.inputs[0].data)[0]):
        word = b"tok%d " % index
        tensor = Tensor("text_output", DataType.BYTES, (1,), struct.pack("<I", len(word)) + word)
        execution.respond(InferResponse(model=request.model, version="1", id=request.id, outputs=[tensor], is_final=False))
        await asyncio.sleep(0)
    execution.respond(InferResponse(model=request.model, version="1", id=request.id, outputs=[], is_null=True))


async def _slow(execution: Execution) -> None:
    for _ in range(200):
        if execution.is_cancelled:
            return
        await asyncio.sleep(0.05)
    await _identity(execution)


async def _fail(execution: Execution) -> None:
    value = struct.unpack_from("<f", execution.request.inputs[0].data)[0]
    execution.fail(InvalidRequest("negative input") if value < 0 else GenerationFailed("Failed to process the request(s): ValueError: kaboom"))


async def _params(execution: Execution) -> None:
    text = ";".join(f"{name}={value!r}" for name, value in sorted(execution.request.parameters.items())).encode()
    _answer(execution, Tensor("OUT", DataType.BYTES, (1,), struct.pack("<I", len(text)) + text))


def _accumulate() -> Compute:
    sums: dict[int | str, float] = {}

    async def compute(execution: Execution) -> None:
        request = execution.request
        value = struct.unpack("<f", next(tensor.data for tensor in request.inputs if tensor.name == "IN"))[0]
        sums[request.correlation_id] = (0.0 if request.sequence_start else sums[request.correlation_id]) + value
        _answer(execution, Tensor("OUT", DataType.FP32, (1, 1), struct.pack("<f", sums[request.correlation_id])))

    return compute


def _compute_of(name: str) -> Compute:
    special = {"repeat_decoupled": _repeat, "slow": _slow, "failing": _fail, "params": _params}
    return _accumulate() if name == "accumulate" else special.get(name, _identity)


async def create(config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
    """A `CreateModel` that runs no code of the repository."""
    if config.platform == "ensemble":
        return await create_tensor_model(config, version, path, context)
    complete = context.complete(config, None)
    delay_s = 0.002 if config.name.startswith("fixed2ms") else 0.0
    instances = [FunctionInstance(f"{config.name}_0_0", _compute_of(config.name), delay_s)]
    return LoadedModel(model=build_model(complete, version, instances, context), config=complete)


def make_repository(folder: Path, **options: object) -> ModelRepository:
    def context(repository: ModelRepository, plan: ModelPlan) -> LoadContext:
        return LoadContext(
            complete=plan.complete,
            caller=repository,
            control=repository,
            signature=lambda name, version: _signature(repository, name, version),
            registry=repository.registry,
            repository_path=folder,
            model_path=folder / plan.name,
        )

    return ModelRepository(replace(RepositoryOptions(paths=[folder]), **options), create, context)


def _signature(repository: ModelRepository, name: str, version: str) -> ModelSignature | None:
    try:
        lease = repository.lease(name, version)
    except TriviumError:
        return None
    lease.release()
    return lease.model.signature

"""Stand-ins for what computes: instances that are functions of this process, and requests for them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from trivium.backends.load_context import LoadContext
from trivium.backends.tensor_base import Inference, ModelSignature, TensorModel
from trivium.errors import TriviumError
from trivium.execution import Execution, ExecutionTimes
from trivium.infer import DataType, InferRequest, InferResponse, RequestedOutput, Tensor
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import TYPE_FP32, ModelConfig, ModelInput, ModelOutput

TIMES = ExecutionTimes(input_ns=1000, infer_ns=2000, output_ns=3000)
Run = Callable[[Sequence[Execution]], Awaitable[None]]


class FunctionInstance:
    """Runs `run` for each batch; remembers the requests it saw."""

    max_in_flight = 1

    def __init__(self, run: Run, name: str = "model_0_0") -> None:
        self.name = name
        self.is_alive = True
        self.is_closed = False
        self.batches: list[list[InferRequest]] = []
        self._run = run
        self._revival = asyncio.Event()

    async def wait_alive(self) -> None:
        await self._revival.wait()

    def revive(self) -> None:
        self.is_alive = True
        self._revival.set()

    async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
        self.batches.append([execution.request for execution in batch])
        await self._run(batch)
        return TIMES

    async def close(self) -> None:
        self.is_closed = True

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def tensor(name: str, *values: float, rows: int | None = 1) -> Tensor:
    """FP32 of shape [rows, n/rows], or [n] without rows."""
    shape = (len(values),) if rows is None else (rows, len(values) // rows)
    return Tensor(name, DataType.FP32, shape, floats(values))


def values_of(found: Tensor) -> list[float]:
    return list(struct.unpack(f"<{len(found.data) // 4}f", found.data))


def request(*inputs: Tensor, model: str = "model", outputs: Sequence[str] = (), **fields: object) -> InferRequest:
    return InferRequest(model=model, inputs=list(inputs), outputs=[RequestedOutput(name=name) for name in outputs], **fields)  # type: ignore[arg-type]


def answer(execution: Execution, *outputs: Tensor, is_final: bool = True, is_null: bool = False) -> None:
    asked = execution.request
    execution.respond(InferResponse(model=asked.model, version="1", id=asked.id, outputs=list(outputs), is_final=is_final, is_null=is_null))


async def double(batch: Sequence[Execution]) -> None:
    """OUT is twice IN."""
    for execution in batch:
        given = next(found for found in execution.request.inputs if found.name == "IN")
        answer(execution, Tensor("OUT", given.datatype, given.shape, floats([2 * value for value in values_of(given)])))


def config(name: str = "model", **fields: object) -> ModelConfig:
    """IN [1] to OUT [1], FP32, batches of up to 8."""
    defaults: dict[str, object] = {
        "max_batch_size": 8,
        "input": [ModelInput(name="IN", data_type=TYPE_FP32, dims=[1])],
        "output": [ModelOutput(name="OUT", data_type=TYPE_FP32, dims=[1])],
    }
    return ModelConfig(name=name, backend="python", **(defaults | fields))  # type: ignore[arg-type]


class Caller:
    """Models by name, for ensembles."""

    def __init__(self, models: dict[str, TensorModel] | None = None) -> None:
        self.models = models or {}

    def infer(self, request: InferRequest) -> Inference:
        return self.models[request.model].infer(request)

    def signature(self, name: str, version: str) -> ModelSignature | None:
        model = self.models.get(name)
        return None if model is None else model.signature


def context(folder: Path = Path("/nowhere"), caller: Caller | None = None, registry: Registry | None = None, **fields: object) -> LoadContext:
    caller = caller or Caller()
    return LoadContext(
        complete=lambda config, found: config,
        caller=caller,
        control=None,  # type: ignore[arg-type]
        signature=caller.signature,
        registry=registry or Registry(),
        repository_path=folder,
        model_path=folder,
        **fields,  # type: ignore[arg-type]
    )


async def answers(inference: Inference) -> list[InferResponse]:
    return [response async for response in inference]


async def error_of(inference: Inference) -> TriviumError:
    """The error it ends with."""
    try:
        found = await answers(inference)
    except TriviumError as error:
        return error
    raise AssertionError(f"it answered {found}")


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)

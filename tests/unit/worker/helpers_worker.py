"""A version of a model in real worker processes, without the server around it."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from trivium.client.worker import WorkerPool, WorkerSpec
from trivium.errors import ModelNotFound, TriviumError
from trivium.execution import ExecutionTimes
from trivium.infer import DataType, InferRequest, InferResponse, RequestedOutput, Tensor
from trivium.metrics.instruments import Registry
from trivium.protocol.config_json import config_to_json
from trivium.protocol.model_config import ModelConfig
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.runtime import Model, load_model
from trivium.worker.tensors import datatype_of, to_array, to_data


class FakeExecution:
    """What a scheduler hands to an instance; `ended` is set by the final response or the failure."""

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.is_cancelled = False
        self.responses: list[InferResponse] = []
        self.error: TriviumError | None = None
        self.num_reschedules = 0
        self.ended = asyncio.Event()
        self._on_cancel: Callable[[], None] = lambda: None

    def respond(self, response: InferResponse) -> None:
        if not self.ended.is_set():
            self.responses.append(response)
            if response.is_final:
                self.ended.set()

    def fail(self, error: TriviumError) -> None:
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def reschedule(self) -> None:
        self.num_reschedules += 1

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._on_cancel = callback

    def cancel(self) -> None:
        self.is_cancelled = True
        self._on_cancel()

    def arrays(self) -> dict[str, Any]:
        """Of the one response."""
        if self.error is not None:
            raise self.error
        (response,) = self.responses
        return arrays(response)

    def arrays_of(self, name: str) -> Any:
        return self.arrays()[name]


def arrays(response: InferResponse) -> dict[str, Any]:
    """BF16 tensors as the bits of their elements."""
    return {
        tensor.name: to_array(DataType.INT16 if tensor.datatype is DataType.BF16 else tensor.datatype, tensor.shape, tensor.data)
        for tensor in response.outputs
    }


class ScriptedAnswer:
    def __init__(self, responses: Sequence[InferResponse], error: TriviumError | None) -> None:
        self.is_cancelled = False
        self._responses = responses
        self._error = error

    def deliver_to(self, on_response: Callable[[InferResponse], None], on_error: Callable[[TriviumError], None]) -> None:
        for response in self._responses:
            asyncio.get_running_loop().call_soon(on_response, response)
        if self._error is not None:
            asyncio.get_running_loop().call_soon(on_error, self._error)

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class FakeServer:
    """The rest of the server, as a worker's client sees it: `models` answer calls, `control` records what the repository is asked."""

    model_path: Path
    models: dict[str, Callable[[InferRequest], Sequence[InferResponse]]] = field(default_factory=dict[str, Any])
    registry: Registry = field(default_factory=Registry)
    auto_complete: bool = True
    default_max_batch_size: int = 4
    allow_python_models: bool = True
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    requests: list[InferRequest] = field(default_factory=list[InferRequest])
    answers: list[ScriptedAnswer] = field(default_factory=list[ScriptedAnswer])

    @property
    def caller(self) -> FakeServer:
        return self

    @property
    def control(self) -> FakeServer:
        return self

    def on_progress(self, stage: str, done: int, total: int) -> None:
        pass

    def infer(self, request: InferRequest) -> ScriptedAnswer:
        self.requests.append(request)
        if request.model not in self.models:
            raise ModelNotFound(f"Request for unknown model: '{request.model}' is not found")
        responses: Sequence[InferResponse] = ()
        error: TriviumError | None = None
        try:
            responses = self.models[request.model](request)
        except TriviumError as raised:
            error = raised
        self.answers.append(ScriptedAnswer(responses, error))
        return self.answers[-1]

    def is_ready(self, name: str, version: str = "") -> bool:
        return name in self.models

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        self.asked.append(("load", name, config_json, dict(files or {})))
        if name == "broken":
            raise ModelNotFound("failed to load 'broken'")

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.asked.append(("unload", name, unload_dependents))


def request(model: str = "model", /, *, outputs: Sequence[str] = (), bf16: Sequence[str] = (), **inputs: Any) -> InferRequest:
    """`bf16` names inputs whose arrays hold the bits of BF16 elements."""
    tensors: list[Tensor] = []
    for name, value in inputs.items():
        array = np.asarray(value)
        tensors.append(Tensor(name, DataType.BF16 if name in bf16 else datatype_of(array.dtype), array.shape, to_data(array)))
    return InferRequest(model=model, inputs=tensors, outputs=[RequestedOutput(name=name) for name in outputs])


def load_here(folder: Path, config: str, **options: Any) -> Model:
    """The model in `folder`/1 loaded in this process, as a worker would."""
    message = ModelConfig(name="model")
    text_format.Parse(config, message)
    fields: dict[str, Any] = {"auto_complete": True, "default_max_batch_size": 4, "settings": {}, "allow_code": True, **options}
    setup = Setup(
        model="model",
        version=1,
        backend=message.backend,
        config_json=config_to_json(message),
        version_path=str(folder / "1"),
        model_path=str(folder),
        instances=[InstanceSetup(name="model_0", kind="CPU", device=0)],
        **fields,
    )
    return load_model(setup)


class Served:
    def __init__(self, pool: WorkerPool, server: FakeServer) -> None:
        self.pool = pool
        self.server = server
        self.times: ExecutionTimes | None = None

    async def run(self, *requests: InferRequest, instance: int = 0) -> list[FakeExecution]:
        """One batch, to its end."""
        batch = [FakeExecution(request) for request in requests]
        self.times = await self.pool.instances[instance].execute(batch)
        return batch

    async def arrays(self, **inputs: Any) -> dict[str, Any]:
        """One request's outputs."""
        (execution,) = await self.run(request(**inputs))
        return execution.arrays()

    @property
    def config(self) -> ModelConfig:
        assert self.pool.completion is not None
        return self.pool.completion


def write_python_model(folder: Path, code: str) -> Path:
    """`<folder>/1/model.py`; `code` has numpy, `pb_utils` and the usual modules at hand."""
    header = "import asyncio, json, os, signal, sys, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(header + textwrap.dedent(code))
    return folder


@asynccontextmanager
async def served(folder: Path, config: str, **options: Any) -> AsyncIterator[Served]:
    """The version in `folder`/1 with `config` in protobuf's text format; `options` are fields of `FakeServer`."""
    message = ModelConfig(name="model")
    text_format.Parse(config, message)
    server = FakeServer(folder, **options)
    pool = await WorkerPool.start(WorkerSpec(config=message, version=1, path=folder / "1", context=server))
    try:
        yield Served(pool, server)
    finally:
        await pool.close()

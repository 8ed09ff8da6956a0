"""What a worker's client needs of the server around it; `backends.load_context.LoadContext` is the real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trivium.errors import TriviumError
from trivium.infer import InferRequest, InferResponse
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import ModelConfig


class Answer(Protocol):
    """A request that another model is answering."""

    def deliver_to(self, on_response: Callable[[InferResponse], None], on_error: Callable[[TriviumError], None]) -> None: ...

    def cancel(self) -> None: ...


class Caller(Protocol):
    """Other models of the repository."""

    def infer(self, request: InferRequest) -> Answer: ...


class Control(Protocol):
    """The repository, for models that load others."""

    def is_ready(self, name: str, version: str = "") -> bool: ...

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None: ...

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None: ...


class WorkerContext(Protocol):
    @property
    def caller(self) -> Caller: ...

    @property
    def control(self) -> Control: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def model_path(self) -> Path: ...

    @property
    def auto_complete(self) -> bool: ...

    @property
    def default_max_batch_size(self) -> int: ...

    @property
    def allow_python_models(self) -> bool: ...

    @property
    def backend_settings(self) -> Mapping[str, Mapping[str, str]]: ...

    @property
    def on_progress(self) -> Callable[[str, int, int], None]: ...


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One version of a model: `config` as complete as it is without the model's files, `path` the version's folder."""

    config: ModelConfig
    version: int
    path: Path
    context: WorkerContext

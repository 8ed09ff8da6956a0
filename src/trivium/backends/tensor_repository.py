"""The interface between the service and wherever tensor models live: a model repository, or the language models of a server without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from trivium.backends.tensor_base import TensorModel
from trivium.batching.statistics import ModelStatistics
from trivium.protocol.model_config import ModelConfig


class TensorLease(Protocol):
    """The right to use one version of a model until `release`."""

    @property
    def model(self) -> TensorModel: ...

    def release(self) -> None: ...


class IndexEntry(Protocol):
    """A line of the repository's index. `version` and `state` are empty for a model that was never loaded."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...


class TensorRepository(Protocol):
    """Where tensor models live. An empty version means the highest that is ready; names and versions come from clients as they are."""

    def lease(self, name: str, version: str = "") -> TensorLease:
        """Raises `ModelNotFound`, `NotReady`, or `InvalidRequest` for a version that is no number."""
        ...

    def is_ready(self, name: str, version: str = "") -> bool: ...

    def check_ready(self) -> None:
        """Raises `NotReady` while models that should be there aren't."""
        ...

    def versions(self, name: str) -> Sequence[int]:
        """Those that are ready."""
        ...

    def config(self, name: str, version: str = "") -> ModelConfig:
        """Completed. Raises what `lease` raises."""
        ...

    def index(self, *, ready_only: bool) -> Sequence[IndexEntry]: ...

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None: ...

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None: ...

    def statistics(self, name: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """Of every model if `name` is empty. Raises `InvalidRequest` for one that isn't there."""
        ...

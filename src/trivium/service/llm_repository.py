"""The language models of a `ModelManager` as a repository of tensor models: what KServe routes see where there is no model repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trivium.backends.base import ModelBackend
from trivium.backends.llm_repository import tensors_for
from trivium.backends.llm_tensors import LlmTensorModel
from trivium.backends.tensor_repository import IndexEntry, TensorLease
from trivium.batching.statistics import ModelStatistics
from trivium.errors import InvalidRequest, ModelNotFound, NotReady, TriviumError
from trivium.protocol.model_config import ModelConfig
from trivium.repository.manager import Lease, ModelManager, ModelState

VERSION = "1"
"""Every model has one version."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    version: str = VERSION
    state: str
    reason: str = ""


class _LlmLease:
    def __init__(self, lease: Lease, model: LlmTensorModel) -> None:
        self._lease = lease
        self.model = model

    def release(self) -> None:
        self._lease.release()


class LlmRepository:
    """A `TensorRepository` that can't load or unload."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self._models: dict[tuple[str, ModelBackend], LlmTensorModel] = {}

    def lease(self, name: str, version: str = "") -> TensorLease:
        _check_version(name, version)
        if name not in self._manager.states():
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found", param="model")
        lease = self._manager.lease(name)
        return _LlmLease(lease, self._model(name, lease.backend))

    def is_ready(self, name: str, version: str = "") -> bool:
        try:
            lease = self.lease(name, version)
        except TriviumError:
            return False
        lease.release()
        return lease.model.is_alive

    def check_ready(self) -> None:
        """The manager's models are looked at by the service itself."""

    def versions(self, name: str) -> Sequence[int]:
        self.lease(name).release()
        return [int(VERSION)]

    def config(self, name: str, version: str = "") -> ModelConfig:
        lease = self.lease(name, version)
        lease.release()
        assert isinstance(lease.model, LlmTensorModel)
        return lease.model.config

    def index(self, *, ready_only: bool) -> Sequence[IndexEntry]:
        """A model once, by its own name: aliases answer, and are no models."""
        states = self._manager.states()
        lines = [Line(name=name, state=_STATES[states[name]]) for name in sorted(self._manager.names())]
        return [line for line in lines if line.state == "READY"] if ready_only else lines

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        raise NotReady("explicit model load / unload is not allowed: this server has no model repository")

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        raise NotReady("explicit model load / unload is not allowed: this server has no model repository")

    def statistics(self, name: str = "", version: str = "") -> Sequence[ModelStatistics]:
        if not name:
            return [self._model(known, backend).statistics for known, backend in self._manager.backends()]
        try:
            lease = self.lease(name, version)
        except TriviumError:
            raise InvalidRequest(f"requested model '{name}' is not available", param="model") from None
        lease.release()
        return [lease.model.statistics]

    def _model(self, name: str, backend: ModelBackend) -> LlmTensorModel:
        model = self._models.get((name, backend))
        if model is None:
            model = self._models[name, backend] = LlmTensorModel(backend, _config(name), int(VERSION))
        return model


_STATES = {
    ModelState.LOADING: "LOADING",
    ModelState.READY: "READY",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "UNAVAILABLE",
}


def _config(name: str) -> ModelConfig:
    config = ModelConfig(name=name, backend="llm")
    config.MergeFrom(tensors_for(config))
    config.version_policy.latest.num_versions = 1
    return config


def _check_version(name: str, version: str) -> None:
    if version in ("", VERSION):
        return
    if not version.isdecimal():
        raise InvalidRequest(
            f"failed to get model version from specified version string '{version}' (details: stol), version should be an integral value > 0",
            param="version",
        )
    raise ModelNotFound(f"Request for unknown model: '{name}' version {version} is not found", param="model")

"""What a back end is inside a worker process, and which ones there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, Protocol

from trivium.errors import ModelLoadError
from trivium.protocol.worker_messages import Batch, BatchDone, InstanceSetup, Setup
from trivium.worker.link import Link


class Instance(Protocol):
    """One copy of a model. Its methods are called by one thread."""

    def run(self, batch: Batch) -> BatchDone:
        """Never raises for what the model does wrong: the responses say so."""
        ...

    def close(self) -> None: ...


class Model(Protocol):
    """A loaded model; its instances may share what it holds."""

    @property
    def config_json(self) -> str:
        """The configuration with what the model's files told."""
        ...

    def create_instance(self, setup: InstanceSetup, link: Link) -> Instance:
        """Raises what `Loader` raises."""
        ...


Loader = Callable[[Setup], Model]
"""Raises `ModelLoadError`, or whatever the library raises; a missing library raises `ModuleNotFoundError`."""

_LOADERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        # back end: module with `load`, the extra that has its library
        "fil": ("trivium.worker.forest", "forest"),
        "onnxruntime": ("trivium.worker.onnx", "onnx"),
        "python": ("trivium.worker.python_model", ""),
        "pytorch": ("trivium.worker.torchscript", ""),
        "tensorflow": ("trivium.worker.tensorflow", "tensorflow"),
        "tensorrt": ("trivium.worker.tensorrt", "tensorrt"),
    }
)


def load_model(setup: Setup) -> Model:
    """Raises `ModelLoadError`."""
    if setup.backend not in _LOADERS:
        raise ModelLoadError(f"unknown back end '{setup.backend}'; there are {', '.join(_LOADERS)}")
    module, extra = _LOADERS[setup.backend]
    try:
        return import_module(module).load(setup)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("trivium"):
            raise
        raise ModelLoadError(f"back end '{setup.backend}' needs the package '{error.name}': pip install 'trivium[{extra}]'") from None

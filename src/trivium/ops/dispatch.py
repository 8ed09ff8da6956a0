"""Fast paths: how a torch reference hands its work to a faster implementation of the same function.

Each op of this package is `op(...)`, which looks for a fast path for the device of its tensors, and `op_reference(...)`, plain torch.
A package of fast paths (`trivium.ops.triton` for CUDA, `trivium.ops.cpu` for the CPU) has one function, `fast_paths()`, that returns
a mapping from the op's name to a function with the op's exact signature. It is called once, on the first use of an op on that kind of
device, and leaves out what can't run here (its library is not built, the CPU lacks an instruction). A fast path accepts every input
the op accepts: what it doesn't do itself it passes to the reference.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

FastPath = Callable[..., Any]

PACKAGES: Mapping[str, str] = {"cuda": "trivium.ops.triton", "cpu": "trivium.ops.cpu"}
"""Device type to the package that holds its fast paths."""

_loaded: dict[str, Mapping[str, FastPath]] = {}


def load_fast_paths(device_type: str) -> Mapping[str, FastPath]:
    """Fast paths for a kind of device, by op name; empty where there is no package for it. Loaded once."""
    if device_type not in _loaded:
        _loaded[device_type] = _import_fast_paths(PACKAGES.get(device_type))
    return _loaded[device_type]


def fast_path(op: str, tensor: Tensor) -> FastPath | None:
    """The fast path of `op` for tensors that live where `tensor` does, or None."""
    return load_fast_paths(tensor.device.type).get(op)


@contextmanager
def references_only(device_type: str) -> Iterator[None]:
    """Inside, ops on this kind of device run their references: for tests and for finding a fault."""
    saved, loaded = load_fast_paths(device_type), _loaded
    loaded[device_type] = {}
    try:
        yield
    finally:
        loaded[device_type] = saved  # in the same table, also where a test has put another in its place meanwhile


def _import_fast_paths(package: str | None) -> Mapping[str, FastPath]:
    if package is None:
        return {}
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        # Only the absence of the package itself, or of the compiler it is written for, means "no fast paths"; a broken import is a bug.
        if error.name in (package, "triton"):
            return {}
        raise
    return module.fast_paths()

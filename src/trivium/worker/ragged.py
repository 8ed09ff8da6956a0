"""Ragged batches: inputs whose requests differ in shape are laid end to end, and `batch_input` tells the model where each one lies.

Kinds as in Triton's `BatchInput` and `BatchOutput` messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from trivium.errors import InternalError, ModelLoadError
from trivium.protocol.worker_messages import WireRequest, WireTensor
from trivium.worker.tensors import Array

_KINDS: Final = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)
_SCATTER: Final = "BATCH_SCATTER_WITH_INPUT_SHAPE"


class BatchInputs:
    """False where the configuration has nothing of the kind. Raises `ModelLoadError` for a kind that isn't known."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._ragged = frozenset(tensor["name"] for tensor in config.get("input", []) if tensor.get("allow_ragged_batch"))
        self._derived: list[dict[str, Any]] = config.get("batch_input", [])
        for derived in self._derived:
            if derived.get("kind", _KINDS[0]) not in _KINDS:
                raise ModelLoadError(f"batch_input kind '{derived['kind']}' is not known")
        self._scattered: dict[str, str] = {}
        """Outputs that lie end to end, and the inputs whose shapes their parts have."""
        for scattered in config.get("batch_output", []):
            kind = scattered.get("kind", _SCATTER)
            if kind != _SCATTER:
                raise ModelLoadError(f"batch_output kind '{kind}' is not known")
            self._scattered |= dict.fromkeys(scattered["target_name"], scattered["source_input"][0])

    def __bool__(self) -> bool:
        return bool(self._ragged or self._derived or self._scattered)

    def scatter(self, requests: Sequence[WireRequest], name: str, array: Array) -> list[Array] | None:
        """The parts of output `name`, one a request; None if it has rows like any other. Raises `InternalError` if they don't fill it."""
        source = self._scattered.get(name)
        if source is None:
            return None
        shapes = [next((tensor.shape for tensor in request.inputs if tensor.name == source), ()) for request in requests]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        if array.size != ends[-1]:
            raise InternalError(f"output '{name}' has {array.size} elements, the batch's '{source}' {ends[-1]}")
        return [part.reshape(shape) for part, shape in zip(np.split(array.reshape(-1), ends[:-1]), shapes, strict=True)]

    def join(self, requests: Sequence[WireRequest], array_of: Callable[[WireTensor], Array]) -> tuple[dict[str, Array], list[int]]:
        """The arrays of the batch by name, and each request's number of rows."""
        arrays: list[dict[str, Array]] = [{tensor.name: array_of(tensor) for tensor in request.inputs} for request in requests]
        joined: dict[str, Array] = {}
        for name in arrays[0]:
            if any(name not in found for found in arrays):
                raise InternalError(f"the requests of a batch differ in input '{name}'")
            parts = [found[name] for found in arrays]
            joined[name] = np.concatenate([part.reshape(-1) for part in parts]) if name in self._ragged else np.concatenate(parts)
        for derived in self._derived:
            source = derived["source_input"][0]
            sources = [found[source] for found in arrays]
            dtype = np.int32 if derived.get("data_type") == "TYPE_INT32" else np.float32
            for target in derived["target_name"]:
                joined[target] = _derive(derived.get("kind", _KINDS[0]), sources).astype(dtype)
        rows = [next(iter(found.values())).shape[0] if found else 1 for found in arrays]
        return joined, rows


def _derive(kind: str, sources: Sequence[Array]) -> Array:
    counts = np.array([source.size for source in sources])
    match kind:
        case "BATCH_ELEMENT_COUNT":
            return counts
        case "BATCH_ACCUMULATED_ELEMENT_COUNT":
            return np.cumsum(counts)
        case "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
            return np.concatenate([[0], np.cumsum(counts)])
        case "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            return np.zeros(counts.max())
        case "BATCH_ITEM_SHAPE":
            return np.array([source.shape[1:] for source in sources for _ in range(source.shape[0])])
        case _:
            return np.array([dim for source in sources for _ in range(source.shape[0]) for dim in source.shape[1:]])

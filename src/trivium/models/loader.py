"""Filling a model: tensor by tensor from a source, or with small random numbers.

Every slot is filled exactly once; a layer is repacked as soon as its last slot is filled, so that at most one layer exists twice.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trivium.errors import WeightError
from trivium.layers.base import Layer, Slot
from trivium.models.layout import Layout

if TYPE_CHECKING:
    from trivium.weights.source import WeightSource

ProgressCallback = Callable[[str, int, int], None]
"""(stage, done, total), in bytes."""

DUMMY_RANGE = 1e-3


def load_weights(model: Layer, layout: Layout, source: WeightSource, progress: ProgressCallback | None = None, *, tied_head: str = "") -> None:
    """Fill `model` from `source`. Raises `WeightError` for a tensor that is missing, misshapen or that nothing needs.

    `tied_head` names an output head that may be in the checkpoint though the config ties it to the embeddings.
    """
    owners = _slots_by_name(model)
    names = source.names()
    present = set(names)
    pending = {id(layer): sum(slot.name in present or slot.required for slot in layer.slots()) for _, layer in model.walk()}
    _check_names(names, owners, layout, source, tied_head)
    # Counted in elements: what a tensor takes in the file differs from what it takes once dequantized.
    done, total = 0, sum(math.prod(source.shape(name)) for name in names)
    for name in names:
        done += math.prod(source.shape(name))
        if name not in owners:
            continue
        layer, slot = owners[name]
        _load_slot(slot, source)
        pending[id(layer)] -= 1
        if pending[id(layer)] == 0:
            layer.finish()
        if progress is not None:
            progress("weights", source.total_bytes * done // total, source.total_bytes)
    assert not any(pending.values()), "a name occurs twice in the source"


def fill_dummy(model: Layer, *, seed: int = 0) -> None:
    """Uniform in ±1e-3, each parameter from a stream of its own that depends on its name, so that ranks agree on what they share."""
    for prefix, layer in model.walk():
        for name, tensor in layer.parameters().items():
            generator = torch.Generator(device=tensor.device)
            generator.manual_seed(zlib.crc32(f"{prefix}.{name}".encode()) + seed)
            tensor.uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=generator)
        layer.finish()


def _slots_by_name(model: Layer) -> dict[str, tuple[Layer, Slot]]:
    owners: dict[str, tuple[Layer, Slot]] = {}
    for _, layer in model.walk():
        for slot in layer.slots():
            assert slot.name not in owners, slot.name
            owners[slot.name] = (layer, slot)
    return owners


def _check_names(names: list[str], owners: dict[str, tuple[Layer, Slot]], layout: Layout, source: WeightSource, tied_head: str) -> None:
    present = set(names)
    missing = [name for name, (_, slot) in owners.items() if slot.required and name not in present]
    if missing:
        raise WeightError(f"The checkpoint lacks {_enumerate(missing)}, which the config calls for.")
    extra = [name for name in names if name not in owners and not layout.is_ignored(name) and name != tied_head]
    if extra:
        where = source.file_of(extra[0])
        raise WeightError(f"The checkpoint holds {_enumerate(extra)} (the first in {where}), which the config has no place for.")


def _load_slot(slot: Slot, source: WeightSource) -> None:
    shape = source.shape(slot.name)
    if slot.shape is not None and tuple(shape) != slot.shape:
        raise WeightError(f"Tensor {slot.name} in {source.file_of(slot.name)} has shape {list(shape)}, the config calls for {list(slot.shape)}.")
    if slot.copies or slot.keep is not None:
        slot.load(source.load(slot.name))


def _enumerate(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

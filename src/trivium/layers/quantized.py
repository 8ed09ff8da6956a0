"""Linear layers of quantized weights: read in the checkpoint's layout, kept in the device's, the same for every layout of that width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trivium.errors import WeightError
from trivium.layers.base import BuildContext, Slot
from trivium.layers.linear import Linear, LinearMethod, Rows, bias_slots
from trivium.ops.linear import PackedWeight
from trivium.ops.quantized import PlainProduct, StackedProducts, pack_quantized
from trivium.weights.layouts import Share, TensorSpec, WeightLayout
from trivium.weights.quantized import QuantizedWeight, stack_rows

DUMMY_RANGE = 1e-3
"""Of the random numbers that a layer to which nothing was loaded makes of itself."""


class QuantizedLinear(LinearMethod):
    """Checkpoint tensors are kept as they are until all are there; then this rank's share of them is read, stacked and packed.

    Matrices that were quantized apart and can't be stacked (groups in another order, another format, one left plain) stay apart.
    """

    def __init__(self, layout: Callable[[str], WeightLayout | None]) -> None:
        """`layout` of a checkpoint matrix; None: it is plain."""
        self.layout = layout

    def create(self, layer: Linear, context: BuildContext) -> None:
        layer.bias = context.empty(layer.out_features) if layer.adds_bias else None
        layer.raw = {part.name: {} for part in layer.rows}
        layer.device, layer.dtype = context.device, context.dtype

    def slots(self, layer: Linear) -> list[Slot]:
        slots: list[Slot] = []
        for part in layer.rows:
            for spec in self._tensors(layer, part):
                keep = _keeper(layer.raw[part.name], spec.suffix)
                slots.append(Slot(f"{part.name}.{spec.suffix}", spec.shape, (), keep=keep, required=spec.required))
        return slots + bias_slots(layer)

    def _tensors(self, layer: Linear, part: Rows) -> tuple[TensorSpec, ...]:
        layout = self.layout(part.name)
        if layout is None:
            return (TensorSpec("weight", (part.total, layer.checkpoint_in_features)),)
        return layout.tensors(part.total, layer.checkpoint_in_features)

    def finish(self, layer: Linear) -> None:
        parts = [self._read(layer, part) for part in layer.rows]
        layer.raw = {}
        layer.packed = _pack(parts, layer.dtype)

    def _read(self, layer: Linear, part: Rows) -> QuantizedWeight | Tensor:
        layout, raw = self.layout(part.name), layer.raw[part.name]
        share = Share(part.total, layer.checkpoint_in_features, part.ranges, layer.columns, layer.device)
        if not raw:
            raw = {"weight": torch.empty(part.total, layer.checkpoint_in_features, device=layer.device).uniform_(-DUMMY_RANGE, DUMMY_RANGE)}
        if layout is None:
            return share.take_columns(share.take_rows(raw["weight"]), 1).to(layer.device, layer.dtype)
        try:
            return layout.read(raw, share)
        except WeightError as error:
            raise WeightError(f"{part.name}: {error.message}") from None

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        assert layer.packed is not None
        return layer.packed(x, layer.bias)


def _keeper(raw: dict[str, Tensor], suffix: str) -> Callable[[Tensor], None]:
    def keep(tensor: Tensor) -> None:
        raw[suffix] = tensor

    return keep


def _pack(parts: Sequence[QuantizedWeight | Tensor], dtype: torch.dtype) -> PackedWeight:
    products: list[tuple[PackedWeight, int]] = []
    for run in _runs(parts):
        first = run[0]
        if isinstance(first, Tensor):
            products.append((PlainProduct(first.contiguous()), first.shape[0]))
        else:
            stacked = stack_rows([part for part in run if isinstance(part, QuantizedWeight)])
            products.append((pack_quantized(stacked, dtype), stacked.num_out))
    return products[0][0] if len(products) == 1 else StackedProducts(products)


def _runs(parts: Sequence[QuantizedWeight | Tensor]) -> list[list[QuantizedWeight | Tensor]]:
    """Neighbours that can be one matrix."""
    runs: list[list[QuantizedWeight | Tensor]] = []
    for part in parts:
        last = runs[-1][0] if runs else None
        if isinstance(part, QuantizedWeight) and isinstance(last, QuantizedWeight) and last.fits(part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs

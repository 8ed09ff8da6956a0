"""Linear layers with int8 weights, a scale per output, and inputs that are rounded to int8 row by row (W8A8 of compressed-tensors)."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.layers.base import BuildContext, Slot
from trivium.layers.linear import Linear, LinearMethod, bias_slots
from trivium.ops.linear import int8_linear_reference, try_pack_int8_weight


class Int8Linear(LinearMethod):
    """`weight` int8 and `scale` float32 [out_features, 1], packed after loading where the device has a faster layout."""

    def create(self, layer: Linear, context: BuildContext) -> None:
        layer.weight = context.empty(layer.out_features, layer.in_features, dtype=torch.int8)
        layer.scale = context.empty(layer.out_features, 1, dtype=torch.float32)
        layer.bias = context.empty(layer.out_features) if layer.adds_bias else None

    def slots(self, layer: Linear) -> list[Slot]:
        assert layer.weight is not None and layer.scale is not None
        slots = [
            Slot(f"{part.name}.weight", (part.total, layer.checkpoint_in_features), tuple(copies))
            for part, copies in layer.row_copies(layer.weight, layer.columns)
        ]
        slots += [Slot(f"{part.name}.weight_scale", (part.total, 1), tuple(copies)) for part, copies in layer.row_copies(layer.scale, None)]
        return slots + bias_slots(layer)

    def finish(self, layer: Linear) -> None:
        assert layer.weight is not None and layer.scale is not None
        layer.packed = try_pack_int8_weight(layer.weight, layer.scale.flatten())
        if layer.packed is not None:
            layer.weight = layer.scale = None

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        if layer.packed is not None:
            return layer.packed(x, layer.bias)
        assert layer.weight is not None and layer.scale is not None
        return int8_linear_reference(x, layer.weight, layer.scale, layer.bias)

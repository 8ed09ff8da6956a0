"""RMS norm with its weight."""

from __future__ import annotations

from torch import Tensor

from trivium.layers.base import BuildContext, Layer, Slot
from trivium.ops.collective import PartialSum, complete, sum_add_rms_norm
from trivium.ops.norm import rms_norm


class RMSNorm(Layer):
    """`x / rms(x) * (offset + weight)` over the last dimension."""

    def __init__(self, context: BuildContext, name: str, size: int, eps: float, *, offset: float = 0.0) -> None:
        self.name = name
        self.eps = eps
        self.offset = offset
        self.weight = context.empty(size)

    def __call__(self, x: Tensor | PartialSum) -> Tensor:
        return rms_norm(complete(x), self.weight, self.eps, offset=self.offset)

    def add(self, x: Tensor | PartialSum, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of x + residual, x + residual)."""
        return sum_add_rms_norm(x, residual, self.weight, self.eps, offset=self.offset)

    def slots(self) -> list[Slot]:
        return [Slot(f"{self.name}.weight", tuple(self.weight.shape), (((slice(None),), self.weight),))]

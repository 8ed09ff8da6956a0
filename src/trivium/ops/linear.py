"""Matrix products with weights, and weights packed once for a faster product."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from trivium.ops.dispatch import fast_path


class PackedWeight(Protocol):
    """A weight [N, K] in a layout that only its own product understands."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K] → [T, N] in x's dtype."""
        ...


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K], weight [N, K], bias [N] → [T, N]."""
    if fast := fast_path("linear", x):
        return fast(x, weight, bias)
    return functional.linear(x, weight, bias)


def try_pack_weight(weight: Tensor) -> PackedWeight | None:
    """The weight [N, K] packed for this device, or None where the plain layout is as good. The caller may drop `weight` afterwards."""
    if fast := fast_path("pack_weight", weight):
        return fast(weight)
    return None

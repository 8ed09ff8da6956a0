"""Matrix products with weights, and weights packed once for a faster product."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trivium.ops.activation import act_and_mul
from trivium.ops.dispatch import fast_path


class PackedWeight(Protocol):
    """A weight [N, K] in a layout that only its own product understands."""

    @property
    def nbytes(self) -> int: ...

    @property
    def keeps_rows_apart(self) -> bool:
        """A row's result is the same to the bit whatever rows are computed with it."""
        ...

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K] → [T, N] in x's dtype."""
        ...

    def wide(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N] float32, not rounded to x's dtype on the way."""
        ...


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K], weight [N, K], bias [N] → [T, N]."""
    if fast := fast_path("linear", x):
        return fast(x, weight, bias)
    return functional.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """`act_and_mul(linear(x))`: x [T, K], weight [2F, K] with the gates' rows first, bias [2F] → [T, F]."""
    if (fast := fast_path("gated_linear", x)) and (out := fast(x, weight, bias, kind)) is not None:
        return out
    return act_and_mul(linear(x, weight, bias), kind)


def try_pack_weight(weight: Tensor) -> PackedWeight | None:
    """The weight [N, K] packed for this device, or None where the plain layout is as good. The caller may drop `weight` afterwards."""
    if fast := fast_path("pack_weight", weight):
        return fast(weight)
    return None


def int8_linear_reference(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K], weight [N, K] int8, scale [N, 1] float32: what one step of each row is worth → [T, N] in x's dtype.

    Inputs are rounded to int8 as well, each row by its largest magnitude.
    """
    wide = x.to(torch.float32)
    step = wide.abs().amax(dim=-1, keepdim=True).div(127).clamp(min=torch.finfo(torch.float32).tiny)
    rounded = functional.linear((wide / step).round(), weight.to(torch.float32)) * step * scale.T
    return (rounded if bias is None else rounded + bias).to(x.dtype)


def try_pack_int8_weight(weight: Tensor, scale: Tensor) -> PackedWeight | None:
    """`weight` [N, K] int8 and `scale` [N] packed for products as in `int8_linear_reference`, or None."""
    if fast := fast_path("pack_int8_weight", weight):
        return fast(weight, scale)
    return None

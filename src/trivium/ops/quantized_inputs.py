"""Inputs in the order, and of the width, that a quantized weight's groups want."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def gather_inputs(x: Tensor, order: Tensor | None, width: int) -> Tensor:
    """x [T, K] → [T, width]. `order` [width] says which input comes where, K standing for a zero; None: as they are, then zeros."""
    num_in = x.shape[1]
    if order is None:
        return x if width == num_in else functional.pad(x, (0, width - num_in))
    # An order that only permutes needs no zero.
    return (x if width == num_in else functional.pad(x, (0, 1)))[:, order]

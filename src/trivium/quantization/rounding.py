"""Whole numbers of four bits with a scale and a zero point a group: how a matrix is rounded to them, number by number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOP = 15
MIN_SCALE = 1e-5
"""Of float16 scales: smaller ones lose their digits."""


@dataclass(frozen=True)
class Rounded:
    """A matrix [N, K] as `(codes - zeros) * scales`."""

    codes: Tensor
    """uint8 [N, K]"""
    scales: Tensor
    """float16 [N, G]"""
    zeros: Tensor
    """uint8 [N, G]"""
    groups: Tensor
    """int64 [K]"""

    def dequantize(self) -> Tensor:
        """float32 [N, K]"""
        return (self.codes.float() - self.zeros.float()[:, self.groups]) * self.scales.float()[:, self.groups]


def grid(low: Tensor, high: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scales (as float16 has them) and zero points, float32, for numbers from `low` to `high`. Zero is always on the grid."""
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / TOP).clamp(min=MIN_SCALE).to(torch.float16).to(torch.float32)
    zeros = torch.full_like(scales, (TOP + 1) / 2) if symmetric else (-low / scales).round().clamp(0, TOP)
    return scales, zeros


def to_codes(weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """float32, whole numbers from 0 to TOP."""
    return ((weight / scales).round() + zeros).clamp(0, TOP)


def round_groups(weight: Tensor, group: int, importance: Tensor | None = None) -> Rounded:
    """Each number to the nearest, with zero points. `importance` [K], the mean square of each input: ranges are then cut as far as that makes
    the weighed error smaller."""
    num_out, num_in = weight.shape
    blocks = weight.float().unflatten(1, (-1, group))  # [N, G, group]
    weights = torch.ones(num_in, device=weight.device) if importance is None else importance
    best_error = torch.full(blocks.shape[:2], float("inf"), device=weight.device)
    best: list[Tensor] = [torch.empty(0)] * 2
    low, high = blocks.amin(dim=2), blocks.amax(dim=2)
    for shrink in (1.0,) if importance is None else [1.0 - 0.04 * step for step in range(12)]:
        scales, zeros = grid(low * shrink, high * shrink, symmetric=False)
        back = (to_codes(blocks, scales.unsqueeze(2), zeros.unsqueeze(2)) - zeros.unsqueeze(2)) * scales.unsqueeze(2)
        error = ((back - blocks).square() * weights.view(1, -1, group)).sum(dim=2)
        better = error < best_error
        best = [torch.where(better, new, old) if old.numel() else new for new, old in zip((scales, zeros), best, strict=True)]
        best_error = torch.minimum(error, best_error)
    scales, zeros = best
    codes = to_codes(blocks, scales.unsqueeze(2), zeros.unsqueeze(2)).view(num_out, num_in)
    groups = torch.arange(num_in, device=weight.device) // group
    return Rounded(codes.to(torch.uint8), scales.to(torch.float16), zeros.to(torch.uint8), groups)

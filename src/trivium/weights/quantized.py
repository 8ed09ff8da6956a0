"""Quantized matrices in one form, whatever layout a checkpoint keeps them in: codes, scales, zero points, and which scale an input has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

Kind = Literal["int4", "int8", "table4", "fp8"]
Inputs = Literal["plain", "int8", "fp8"]

CENTER: Final = {"int4": 8, "int8": 128}
"""Zero point of symmetric codes, which are stored unsigned."""
GROUP_MULTIPLE: Final = 16
"""Kernels take groups of whole multiples of this many inputs."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [N, K]: output n, input k has the value `(code - zero) * scale`, `table[code] * scale`, or the float8's times `scale`."""

    kind: Kind
    codes: Tensor
    """uint8 [N, K]; for fp8 the bytes of float8_e4m3fn."""
    scales: Tensor
    """float32 [N, G]"""
    groups: Tensor
    """int64 [K]: the group of each input, from 0 to G - 1."""
    zeros: Tensor | None = None
    """float32 [N, G]; None: the middle of the range."""
    table: Tensor | None = None
    """float32 [16], of kind table4."""
    inputs: Inputs = "plain"
    """What inputs are rounded to, row by row, where the device multiplies such numbers."""

    def __post_init__(self) -> None:
        assert self.codes.dtype == torch.uint8 and self.codes.dim() == 2
        assert self.scales.shape[0] == self.codes.shape[0] and self.groups.shape == (self.codes.shape[1],)
        assert self.zeros is None or self.zeros.shape == self.scales.shape
        assert (self.table is not None) == (self.kind == "table4")

    @property
    def num_out(self) -> int:
        return self.codes.shape[0]

    @property
    def num_in(self) -> int:
        return self.codes.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], computed in `dtype`."""
        return (
            decode(self.kind, self.codes, self.table, None if self.zeros is None else self.zeros[:, self.groups], dtype)
            * self.scales.to(dtype)[:, self.groups]
        )

    def fits(self, other: QuantizedWeight) -> bool:
        """Whether the rows of both can be one matrix."""
        return (
            self.kind == other.kind
            and self.inputs == other.inputs
            and (self.zeros is None) == (other.zeros is None)
            and torch.equal(self.groups, other.groups)
            and (self.table is None or other.table is None or torch.equal(self.table, other.table))
        )


def decode(kind: Kind, codes: Tensor, table: Tensor | None, zeros: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What codes stand for before they are scaled; `zeros` must broadcast with them."""
    if kind == "fp8":
        return codes.view(torch.float8_e4m3fn).to(dtype)
    if kind == "table4":
        assert table is not None
        return table.to(dtype)[codes.to(torch.int64)]
    return codes.to(dtype) - (CENTER[kind] if zeros is None else zeros.to(dtype))


def stack_rows(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Matrices that fit each other, one below the other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    zeros = None if first.zeros is None else torch.cat([weight.zeros for weight in weights if weight.zeros is not None])
    return replace(first, codes=torch.cat([weight.codes for weight in weights]), scales=torch.cat([weight.scales for weight in weights]), zeros=zeros)


def even_groups(num_in: int, group_size: int | None, device: torch.device | str = "cpu") -> Tensor:
    """Groups of `group_size` inputs in order; None: one for all."""
    return torch.arange(num_in, device=device) // (group_size or num_in)


@dataclass(frozen=True)
class Arranged:
    """A quantized matrix with inputs in an order in which groups are runs of equal length. K' = G' * `group`."""

    kind: Kind
    codes: Tensor
    """uint8 [N, K']"""
    scales: Tensor
    """float32 [N, G']"""
    zeros: Tensor | None
    table: Tensor | None
    group: int
    """A multiple of GROUP_MULTIPLE."""
    order: Tensor | None
    """int64 [K']: which input comes where; `num_in` stands for a zero. None: as they are, then zeros."""
    num_in: int
    inputs: Inputs


def arrange(weight: QuantizedWeight) -> Arranged:
    """Groups out of order or of odd sizes are sorted and padded; what is added meets inputs of zero."""
    groups, num_in = weight.groups, weight.num_in
    is_sorted = bool((groups[1:] >= groups[:-1]).all())
    order = None if is_sorted else groups.argsort(stable=True)
    sorted_groups = groups if order is None else groups[order]
    runs, counts = torch.unique_consecutive(sorted_groups, return_counts=True)
    ends: list[int] = counts.cumsum(0).tolist()
    size = math.gcd(*ends[:-1]) if len(ends) > 1 else -(-num_in // GROUP_MULTIPLE) * GROUP_MULTIPLE
    if size % GROUP_MULTIPLE == 0:
        width = -(-num_in // size) * size
        which = sorted_groups[::size]
        if order is not None and width > num_in:
            order = torch.cat((order, order.new_full((width - num_in,), num_in)))
    else:
        order = _padded_order(torch.arange(num_in, device=groups.device) if order is None else order, counts.tolist(), num_in)
        size, width = GROUP_MULTIPLE, len(order)
        which = runs.repeat_interleave((counts + size - 1) // size)
    codes = torch.nn.functional.pad(weight.codes, (0, max(1, width - num_in)))  # at least the one column that `num_in` in the order names
    codes = codes[:, :width] if order is None else codes[:, order]
    zeros = None if weight.zeros is None else weight.zeros[:, which].contiguous()
    return Arranged(
        kind=weight.kind,
        codes=codes.contiguous(),
        scales=weight.scales[:, which].contiguous(),
        zeros=zeros,
        table=weight.table,
        group=size,
        order=order,
        num_in=num_in,
        inputs=weight.inputs,
    )


def _padded_order(order: Tensor, counts: list[int], num_in: int) -> Tensor:
    parts: list[Tensor] = []
    for run in order.split(counts):
        parts += [run, run.new_full((-len(run) % GROUP_MULTIPLE,), num_in)]
    return torch.cat(parts)

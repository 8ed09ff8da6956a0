"""Linear layers: several checkpoint matrices merged into one, sharded over ranks, kept in the layout of a `LinearMethod`.

A `Linear` computes some rows of some checkpoint matrices. Column parallel: a rank has a range of each matrix's rows (outputs). Row
parallel: a rank has all rows and a range of columns (inputs); its result is a summand that the caller adds up over ranks, and only
rank 0 adds the bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import ConfigError
from trivium.layers.base import BuildContext, Layer, Slot
from trivium.ops.activation import act_and_mul
from trivium.ops.linear import PackedWeight, gated_linear, linear, try_pack_weight


@dataclass(frozen=True, slots=True)
class Rows:
    """One checkpoint matrix: which of its `total` rows become ours, in the order they are stacked."""

    name: str
    """Name in the checkpoint, without `.weight`."""
    total: int
    ranges: tuple[tuple[int, int], ...]
    """(start, end) pairs."""

    @property
    def count(self) -> int:
        return sum(end - start for start, end in self.ranges)


def split_evenly(total: int, rank: int, size: int, what: str) -> tuple[int, int]:
    """This rank's range of `total` things."""
    if total % size:
        raise ConfigError(f"tensor_parallel_size {size} does not divide the model's {what} ({total}).", param="tensor_parallel_size")
    share = total // size
    return rank * share, (rank + 1) * share


class LinearMethod(ABC):
    """How a linear layer keeps its weight and multiplies by it. Quantized formats are other methods of the same layers."""

    @abstractmethod
    def create(self, layer: Linear, context: BuildContext) -> None:
        """Allocate the layer's tensors as attributes of it."""

    @abstractmethod
    def slots(self, layer: Linear) -> list[Slot]:
        """Checkpoint tensors that fill them."""

    @abstractmethod
    def finish(self, layer: Linear) -> None:
        """After loading: repack, if another layout is faster."""

    @abstractmethod
    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        """x [T, in_features] → [T, out_features]."""

    def apply_gated(self, layer: Linear, x: Tensor, kind: str) -> Tensor:
        """`act_and_mul` of the product: x [T, in_features] → [T, out_features / 2]."""
        return act_and_mul(self.apply(layer, x), kind)


class Linear(Layer):
    """`x @ weight.T + bias`, without any communication. Sizes are this rank's."""

    weight: Tensor | None
    bias: Tensor | None
    packed: PackedWeight | None
    raw: dict[str, dict[str, Tensor]]
    """Checkpoint tensors of each matrix, kept until all are there (quantized weights)."""
    device: torch.device
    dtype: torch.dtype
    """Of inputs."""

    def __init__(
        self, context: BuildContext, rows: Sequence[Rows], in_features: int, *, columns: tuple[int, int] | None = None, has_bias: bool = False
    ) -> None:
        """`in_features` is the checkpoint's; `columns` is this rank's range of them (row parallel)."""
        self.rows = tuple(rows)
        self.checkpoint_in_features = in_features
        self.columns = columns or (0, in_features)
        self.in_features = self.columns[1] - self.columns[0]
        self.out_features = sum(part.count for part in self.rows)
        self.has_bias = has_bias
        self.adds_bias = has_bias and (columns is None or context.parallel.rank == 0)
        self.weight = self.bias = self.packed = None
        self.method = context.linear_method([part.name for part in self.rows])
        self.method.create(self, context)

    def __call__(self, x: Tensor) -> Tensor:
        return self.method.apply(self, x)

    def gated(self, x: Tensor, kind: str) -> Tensor:
        """x [T, in_features] → `act_and_mul` of the product, [T, out_features / 2]."""
        return self.method.apply_gated(self, x, kind)

    def slots(self) -> list[Slot]:
        return self.method.slots(self)

    def finish(self) -> None:
        self.method.finish(self)

    def nbytes(self) -> int:
        return super().nbytes() + (self.packed.nbytes if self.packed is not None else 0)

    def keeps_rows_apart(self) -> bool:
        return self.packed is not None and self.packed.keeps_rows_apart

    def row_copies(self, target: Tensor, columns: tuple[int, int] | None) -> list[tuple[Rows, list[tuple[tuple[slice, ...], Tensor]]]]:
        """For each checkpoint matrix: its pieces, and the views of `target` [out_features, ...] that they fill."""
        at, parts = 0, []
        for part in self.rows:
            copies: list[tuple[tuple[slice, ...], Tensor]] = []
            for start, end in part.ranges:
                index = (slice(start, end),) if columns is None else (slice(start, end), slice(*columns))
                copies.append((index, target[at : at + end - start]))
                at += end - start
            parts.append((part, copies))
        return parts


class PlainLinear(LinearMethod):
    """The weight in the model's dtype, packed after loading where the device has a faster layout."""

    def create(self, layer: Linear, context: BuildContext) -> None:
        layer.weight = context.empty(layer.out_features, layer.in_features)
        layer.bias = context.empty(layer.out_features) if layer.adds_bias else None

    def slots(self, layer: Linear) -> list[Slot]:
        assert layer.weight is not None
        slots = [
            Slot(f"{part.name}.weight", (part.total, layer.checkpoint_in_features), tuple(copies))
            for part, copies in layer.row_copies(layer.weight, layer.columns)
        ]
        return slots + bias_slots(layer)

    def finish(self, layer: Linear) -> None:
        assert layer.weight is not None
        layer.packed = try_pack_weight(layer.weight)
        if layer.packed is not None:
            layer.weight = None

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        if layer.packed is not None:
            return layer.packed(x, layer.bias)
        assert layer.weight is not None
        return linear(x, layer.weight, layer.bias)

    def apply_gated(self, layer: Linear, x: Tensor, kind: str) -> Tensor:
        if layer.packed is not None:
            return act_and_mul(layer.packed(x, layer.bias), kind)
        assert layer.weight is not None
        return gated_linear(x, layer.weight, layer.bias, kind)


def bias_slots(layer: Linear) -> list[Slot]:
    """One for each checkpoint matrix, if there are biases; empty on ranks that leave adding them to rank 0."""
    if layer.bias is not None:
        return [Slot(f"{part.name}.bias", (part.total,), tuple(copies)) for part, copies in layer.row_copies(layer.bias, None)]
    return [Slot(f"{part.name}.bias", (part.total,), ()) for part in layer.rows if layer.has_bias]


def column_parallel(context: BuildContext, name: str, out_features: int, in_features: int, *, bias: bool = False) -> Linear:
    """A rank computes its share of the outputs of one matrix."""
    parallel = context.parallel
    share = split_evenly(out_features, parallel.rank, parallel.size, f"outputs of {name}")
    return Linear(context, [Rows(name, out_features, (share,))], in_features, has_bias=bias)


def row_parallel(context: BuildContext, name: str, out_features: int, in_features: int, *, bias: bool = False) -> Linear:
    """A rank takes its share of the inputs; results are to be added up over ranks."""
    parallel = context.parallel
    share = split_evenly(in_features, parallel.rank, parallel.size, f"inputs of {name}")
    return Linear(context, [Rows(name, out_features, ((0, out_features),))], in_features, columns=share, has_bias=bias)


def replicated(context: BuildContext, name: str, out_features: int, in_features: int, *, bias: bool = False) -> Linear:
    """The whole matrix on every rank."""
    return Linear(context, [Rows(name, out_features, ((0, out_features),))], in_features, has_bias=bias)


def stacked(context: BuildContext, names: Sequence[str], parts: Sequence[tuple[int, tuple[int, int]]], in_features: int, *, bias: bool) -> Linear:
    """Several column-parallel matrices as one product. `parts` are (rows in all, this rank's range) in order.

    One name for several parts: the checkpoint stores them stacked, too (Phi-3).
    """
    if len(names) == 1:
        offsets = [sum(total for total, _ in parts[:index]) for index in range(len(parts))]
        ranges = tuple((offset + start, offset + end) for offset, (_, (start, end)) in zip(offsets, parts, strict=True))
        rows = [Rows(names[0], sum(total for total, _ in parts), ranges)]
    else:
        rows = [Rows(name, total, (share,)) for name, (total, share) in zip(names, parts, strict=True)]
    return Linear(context, rows, in_features, has_bias=bias)

"""What a layout of quantized weights is: which tensors stand for a matrix, and how a share of it is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trivium.weights.quantized import QuantizedWeight

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the checkpoint that belongs to a matrix; `suffix` follows the module's name and a dot."""

    suffix: str
    shape: tuple[int, ...] | None
    """None: known only once it is read."""
    required: bool = True


@dataclass(frozen=True)
class Share:
    """Which rows (outputs) and columns (inputs) of a matrix [num_out, num_in] are read, and where they go."""

    num_out: int
    num_in: int
    rows: Ranges
    columns: tuple[int, int]
    device: torch.device

    @classmethod
    def whole(cls, num_out: int, num_in: int) -> Share:
        return cls(num_out, num_in, ((0, num_out),), (0, num_in), torch.device("cpu"))

    def take_rows(self, tensor: Tensor, dim: int = 0, *, per_entry: int = 1) -> Tensor:
        """Our rows, which lie along `dim`, `per_entry` of them in an entry."""
        assert not per_entry > 1 or self.rows_are_aligned(per_entry)
        parts = [tensor.narrow(dim, start // per_entry, (end - start) // per_entry) for start, end in self.rows]
        return torch.cat(parts, dim) if len(parts) > 1 else parts[0]

    def take_columns(self, tensor: Tensor, dim: int, *, per_entry: int = 1) -> Tensor:
        start, end = self.columns
        return tensor.narrow(dim, start // per_entry, (end - start) // per_entry)

    def rows_are_aligned(self, multiple: int) -> bool:
        return all(start % multiple == 0 and end % multiple == 0 for start, end in self.rows)

    def columns_are_aligned(self, multiple: int) -> bool:
        return all(edge % multiple == 0 for edge in self.columns)


class WeightLayout(Protocol):
    def tensors(self, num_out: int, num_in: int) -> tuple[TensorSpec, ...]:
        """The tensors of a matrix [num_out, num_in]; the first one is in every checkpoint of this layout."""
        ...

    def read(self, raw: Mapping[str, Tensor], share: Share) -> QuantizedWeight:
        """`raw`: the tensors that are there, by suffix. Raises `WeightError` for contents that can't be."""
        ...


def num_groups(num_in: int, group_size: int | None) -> int:
    return -(-num_in // (group_size or num_in))

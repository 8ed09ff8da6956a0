"""What every layer is: an object that holds tensors and smaller layers, and says which checkpoint tensors fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivium.arch.rope import RopeSpec
from trivium.ops.attention.base import AttentionBackend
from trivium.ops.collective import ParallelContext

if TYPE_CHECKING:
    from trivium.layers.linear import LinearMethod

Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One checkpoint tensor and where its parts go. On a rank that needs none of it, `copies` is empty."""

    name: str
    shape: tuple[int, ...] | None
    """As it must be in the checkpoint; None: only its reader can tell."""
    copies: tuple[tuple[Index, Tensor], ...]
    """(part of the checkpoint tensor, view of a parameter it is copied to)"""
    keep: Callable[[Tensor], None] | None = None
    """Takes the tensor as it is, instead of copies of its parts; what it is given is valid until the layer is finished."""
    required: bool = True

    def load(self, tensor: Tensor) -> None:
        if self.keep is not None:
            self.keep(tensor)
        for index, target in self.copies:
            target.copy_(tensor[index])


class Layer:
    """Attributes that are tensors are parameters; attributes that are layers, or lists of layers, are children."""

    def children(self) -> Iterator[tuple[str, Layer]]:
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, list):
                yield from ((f"{name}.{index}", item) for index, item in enumerate(value) if isinstance(item, Layer))

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer and all below it, parents first."""
        yield prefix, self
        for name, child in self.children():
            yield from child.walk(f"{prefix}.{name}" if prefix else name)

    def parameters(self) -> dict[str, Tensor]:
        """Own tensors, children's not included. Tensors shared with another layer are listed by the one that owns them."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, layer in self.walk():
            for name, tensor in layer.parameters().items():
                yield f"{prefix}.{name}" if prefix else name, tensor

    def slots(self) -> list[Slot]:
        """Checkpoint tensors that fill this layer's own parameters."""
        return []

    def nbytes(self) -> int:
        """Memory of the own parameters, in whatever layout they are kept."""
        return sum(tensor.nbytes for tensor in self.parameters().values())

    def keeps_rows_apart(self) -> bool:
        """Whether a row's result, but for attention's, is the same to the bit whatever rows are computed with it. Children not included."""
        return True

    def finish(self) -> None:
        """Called once, when all own slots are filled: the place to repack."""


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines by position, shared by the layers that turn the same way; not a parameter."""

    cos_sin: Tensor  # [max_model_len, rotary_dim] float32
    rotary_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What layers need to know when they are made. Passed down, never stored globally."""

    dtype: torch.dtype
    device: torch.device
    parallel: ParallelContext
    attention: AttentionBackend
    rope_table: Callable[[RopeSpec], RopeTable]
    """Layers with equal specs get the same table."""
    linear_method: Callable[[Sequence[str]], LinearMethod]
    """How the linear layer of these checkpoint matrices keeps its weight."""

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

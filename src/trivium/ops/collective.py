"""Communication between the ranks that share each layer. One rank: no communication at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """This process's place among the ranks of one model. `group` is None for a single rank."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size
        assert self.size == 1 or self.group is not None

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """x of each rank, side by side along `dim` in order of rank."""
        if self.size == 1:
            return x
        x = x.contiguous()
        parts = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(parts.view(-1, *x.shape[1:]) if x.ndim else parts, x, group=self.group)
        return torch.cat(parts.unbind(0), dim=dim)

    def minimum(self, value: int) -> int:
        """The least of all ranks' values, for decisions that must be the same everywhere. Waits for the device."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend(self.group) == "nccl" else "cpu"
        shared = torch.tensor([value], dtype=torch.int64, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MIN, group=self.group)
        return int(shared.item())

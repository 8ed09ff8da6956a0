"""Communication between the ranks that share each layer. One rank: no communication at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from trivium.ops.norm import add_rms_norm
from trivium.ops.peers import Peers


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """This process's place among the ranks of one model. `group` is None for a single rank; `peers` is the fast way for GPUs of one host."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    peers: Peers | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size
        assert self.size == 1 or self.group is not None

    def all_reduce(self, x: Tensor, *, is_kept: bool = True) -> Tensor:
        """The sum over ranks; `x` itself may be overwritten, and, unless `is_kept`, the sum by the next one."""
        if self.size == 1:
            return x
        if self.peers is not None and self.peers.sums(x):
            return self.peers.all_reduce(x, is_kept=is_kept)
        dist.all_reduce(x, group=self.group)
        return x

    def sum_later(self, x: Tensor) -> Tensor | PartialSum:
        """`all_reduce` of x [T, H] that is read before the next one, put off where the norm that usually follows can do it on the way."""
        if self.peers is not None and self.peers.sums_and_norms(x):
            return PartialSum(x, self)
        return self.all_reduce(x, is_kept=False)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """x of each rank, side by side along `dim` in order of rank. May be overwritten by the next one."""
        if self.size == 1:
            return x
        if dim == -1 and self.peers is not None and self.peers.gathers(x):
            return self.peers.all_gather(x)
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


@dataclass(frozen=True, slots=True)
class PartialSum:
    """This rank's part of a sum over ranks that is still to be made, by every rank in the same order."""

    part: Tensor
    parallel: ParallelContext


def complete(x: Tensor | PartialSum) -> Tensor:
    return x.parallel.all_reduce(x.part, is_kept=False) if isinstance(x, PartialSum) else x


def sum_add_rms_norm(x: Tensor | PartialSum, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """`ops.norm.add_rms_norm` of a sum that may still have to be made."""
    if not isinstance(x, PartialSum):
        return add_rms_norm(x, residual, weight, eps, offset=offset)
    peers = x.parallel.peers
    assert peers is not None
    return peers.add_rms_norm(x.part, residual, weight, eps, offset=offset)

"""Sums over the GPUs of one host through memory that they read from each other, which for small messages costs a third of NCCL's kernels.

Built on torch's symmetric memory. NVLink multicast is not used.
"""

from __future__ import annotations

import logging
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

logger = logging.getLogger(__name__)

ONE_SHOT_BYTES: Final = 256 << 10
"""Up to this size every rank reads all parts whole; beyond, each sums its share and reads the others' (docs/gpu-record.md has both by size)."""
TWO_SHOT_BYTES: Final = 16 << 20
"""Larger messages fill the links as well through NCCL."""
MAX_ROWS: Final = 128
"""Rows that are summed and normed in one kernel: fewer than a GPU has multiprocessors."""
GATHER_BYTES: Final = 68 << 20
"""Logits of 256 rows of the largest common vocabularies in 16 bit; larger tables go through NCCL."""
MAX_GATHER_ROWS: Final = 1024
ALIGNMENT: Final = 16
"""Bytes that a thread of the library's sums reads at once, for each rank."""


class Peers:
    """Memory shared by the ranks of one model."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """All ranks together. Raises `RuntimeError` where they can't read each other's memory."""
        from torch.distributed import _symmetric_memory as symmetric

        from trivium.ops.triton.peers import FLAGS_PER_ROW, GATHER_BLOCK

        self.rank, self.size = group.rank(), group.size()
        assert self.size <= FLAGS_PER_ROW
        self._group_name = group.group_name
        self._wide = symmetric.empty(TWO_SHOT_BYTES, dtype=torch.uint8, device=device)
        parts = symmetric.empty(2 * ONE_SHOT_BYTES, dtype=torch.uint8, device=device)
        flags = symmetric.empty(MAX_ROWS * FLAGS_PER_ROW, dtype=torch.int32, device=device)
        self._table = symmetric.empty(GATHER_BYTES, dtype=torch.uint8, device=device)
        # A line for each piece of the largest table, and for the shorter last piece of each row.
        self._num_lines = GATHER_BYTES // (2 * GATHER_BLOCK * self.size) + MAX_GATHER_ROWS
        table_flags = symmetric.empty(self._num_lines * FLAGS_PER_ROW, dtype=torch.int32, device=device)
        flags.zero_()
        table_flags.zero_()
        self._kept = (parts, flags, table_flags)
        symmetric.rendezvous(self._wide, group)
        self._parts = torch.tensor(symmetric.rendezvous(parts, group).buffer_ptrs, dtype=torch.int64, device=device)
        self._flags = torch.tensor(symmetric.rendezvous(flags, group).buffer_ptrs, dtype=torch.int64, device=device)
        self._epochs = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self._tables = torch.tensor(symmetric.rendezvous(self._table, group).buffer_ptrs, dtype=torch.int64, device=device)
        self._table_flags = torch.tensor(symmetric.rendezvous(table_flags, group).buffer_ptrs, dtype=torch.int64, device=device)
        self._table_epochs = torch.zeros(self._num_lines, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        dist.barrier(group)

    def sums(self, x: Tensor) -> bool:
        """Whether `all_reduce` takes x."""
        return x.nbytes <= TWO_SHOT_BYTES and x.nbytes % (ALIGNMENT * self.size) == 0 and x.is_contiguous() and _is_float(x)

    def sums_and_norms(self, x: Tensor) -> bool:
        """Whether `add_rms_norm` takes x [T, H]."""
        return 0 < x.shape[0] <= MAX_ROWS and x.nbytes <= ONE_SHOT_BYTES and x.is_contiguous() and _is_float(x)

    def gathers(self, x: Tensor) -> bool:
        """Whether `all_gather` takes x."""
        fits = x.ndim == 2 and x.nbytes * self.size <= GATHER_BYTES and 0 < x.shape[0] <= MAX_GATHER_ROWS
        return fits and x.stride(1) == 1 and _is_float(x)

    def all_gather(self, x: Tensor) -> Tensor:
        """x [S, W] of every rank, side by side: [S, W * size] in shared memory, valid until the next. At least one sum must lie between two."""
        from trivium.ops.triton.peers import gather

        gather(x, tables=self._tables, flags=self._table_flags, epochs=self._table_epochs, rank=self.rank, size=self.size)
        shape = (x.shape[0], x.shape[1] * self.size)
        return self._table[: x.nbytes * self.size].view(x.dtype).view(shape)

    def all_reduce(self, x: Tensor, *, is_kept: bool) -> Tensor:
        """The sum of every rank's x. Unless `is_kept` it may lie in shared memory, which the next sum overwrites."""
        part = self._wide[: x.nbytes].view(x.dtype).view(x.shape)
        if x.nbytes <= ONE_SHOT_BYTES:
            return torch.ops.symm_mem.one_shot_all_reduce_copy(part, x, "sum", self._group_name)
        part.copy_(x)
        total = torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", self._group_name)
        return total.clone() if is_kept else total

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
        """x [T, H] of each rank → (norm of the new residual, new residual), which is `residual` plus the sum of x, in place."""
        from trivium.ops.triton.peers import sum_add_norm

        out = torch.empty_like(x)
        half_size = ONE_SHOT_BYTES // x.itemsize
        sum_add_norm(
            x, residual, weight, out, eps, offset, parts=self._parts, flags=self._flags, epochs=self._epochs, half_size=half_size,
            rank=self.rank, size=self.size,
        )  # fmt: skip
        return out, residual


def connect_peers(group: dist.ProcessGroup, device: torch.device) -> Peers | None:
    """None where the GPUs don't reach each other's memory; then NCCL does everything. All ranks call it together."""
    try:
        return Peers(group, device)
    except (RuntimeError, ImportError, AttributeError) as error:
        logger.warning("all sums go through NCCL: %s", str(error).splitlines()[0])
        return None


def _is_float(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float32)

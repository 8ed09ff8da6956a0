"""A weight file mapped into memory: tensors are views of the page cache until somebody copies them."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from torch import Tensor

MAP_NORESERVE = 0x4000
"""Linux. The mapping is private, so nothing can change the file; it needs no swap behind it either."""


class MappedFile:
    """Bytes of a file as tensors that share its pages. A write to such a tensor stays in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)

    def tensor(self, offset: int, num_bytes: int) -> Tensor:
        """uint8 view [num_bytes]. The caller has checked the bounds. Pages are read ahead."""
        assert 0 <= offset <= offset + num_bytes <= self.size, (offset, num_bytes, self.size)
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        self._will_need(offset, num_bytes)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=num_bytes, offset=offset)

    def _will_need(self, offset: int, num_bytes: int) -> None:
        start = offset - offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, offset + num_bytes - start)

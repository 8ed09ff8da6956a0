"""Memory in huge pages: a step reads all weights once, and with small pages finding each page's address costs a seventh of that time."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref

import torch
from torch import Tensor

CHUNK_BYTES = 32 << 20
ALIGNMENT = 64
SMALL_PAGE = mmap.PAGESIZE


def prefer_huge_pages(tensor: Tensor) -> None:
    """Asks the system to back the tensor's pages that are not yet in use by huge ones. Without effect where it can't."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return
    start = -(-tensor.data_ptr() // SMALL_PAGE) * SMALL_PAGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // SMALL_PAGE * SMALL_PAGE
    if length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


class Arena:
    """Hands out tensors that lie side by side in chunks, so that small weights share huge pages. A chunk lives as long as a tensor in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[Tensor] | None = None
        self._used = 0

    def empty(self, entries: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor, uninitialized, aligned for vectors."""
        size = -(-entries * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        with self._lock:
            chunk = self._chunk() if self._chunk is not None else None
            if chunk is None or self._used + size > chunk.numel():
                chunk = torch.empty(max(size, CHUNK_BYTES) + ALIGNMENT, dtype=torch.uint8)
                prefer_huge_pages(chunk)
                self._chunk = weakref.ref(chunk)
                self._used = -chunk.data_ptr() % ALIGNMENT
            start = self._used
            self._used += size
        tensor = chunk[start : start + entries * dtype.itemsize].view(dtype)
        tensor.arena_chunk = chunk  # pyright: ignore[reportAttributeAccessIssue]
        return tensor


weights = Arena()
"""Where packed weights lie; it keeps nothing alive itself."""

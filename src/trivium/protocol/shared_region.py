"""Shared memory of one direction between the server and a worker instance: an anonymous file that only they have, with an allocator.

The file has no name, so that nobody else can open it, and goes away with the last process that has it, however that one ends. Its size is
fixed and sealed: neither side can make the other read past its end. Memory is taken where it is first written; what lies above
`KEPT_SIZE` is given back to the system as soon as nothing is allocated there.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from bisect import bisect_left, insort
from typing import Final

from trivium.infer import Buffer

KEPT_SIZE: Final = 16 * 2**20
"""Bytes from the start that stay in memory between uses."""
ALIGNMENT: Final = 64
_PAGE: Final = mmap.PAGESIZE


class Allocator:
    """First fit in `size` bytes. Blocks are multiples of `ALIGNMENT`, free neighbours are one block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[tuple[int, int]] = [(0, size)]
        """(offset, size), in order."""
        self._used: dict[int, int] = {}

    @property
    def num_used(self) -> int:
        return len(self._used)

    @property
    def used_end(self) -> int:
        """Nothing is allocated from here on."""
        last_offset, last_size = self._free[-1] if self._free else (0, 0)
        return last_offset if last_offset + last_size == self._size else self._size

    def allocate(self, size: int) -> int | None:
        """Offset of a new block; None when there is no room."""
        size = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, room - size)
                self._used[offset] = size
                return offset
        return None

    def free(self, offset: int) -> None:
        """Raises `ValueError` for what isn't the start of a block in use: the other process gave a wrong number."""
        size = self._used.pop(offset, None)
        if size is None:
            raise ValueError(f"no block is in use at {offset}")
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            size += before
        insort(self._free, (offset, size))


class SharedRegion:
    """The writer's side has the allocator; the reader's only looks at what messages point to."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self._view = memoryview(self._map)
        self._allocator = Allocator(size)
        self._touched_end = 0

    @classmethod
    def create(cls, size: int) -> SharedRegion:
        """A new one of `size` bytes, a multiple of the page size; takes no memory yet. Raises `OSError`."""
        assert size % _PAGE == 0
        fd = os.memfd_create("trivium-worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def open(cls, fd: int) -> SharedRegion:
        """The region behind an inherited descriptor."""
        return cls(fd, os.fstat(fd).st_size)

    @property
    def num_blocks(self) -> int:
        return self._allocator.num_used

    def put(self, data: Buffer) -> int | None:
        """Copy `data` in; its offset, or None when there is no room."""
        size = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
        offset = self._allocator.allocate(size)
        if offset is not None:
            self._view[offset : offset + size] = data if isinstance(data, bytes | bytearray) else data.cast("B")
            self._touched_end = max(self._touched_end, offset + size)
        return offset

    def free(self, offset: int) -> None:
        """Raises `ValueError` for an offset that isn't a block in use."""
        self._allocator.free(offset)
        keep = -(-max(KEPT_SIZE, self._allocator.used_end) // _PAGE) * _PAGE
        if self._touched_end > keep:
            self._map.madvise(mmap.MADV_REMOVE, keep, self.size - keep)
            self._touched_end = keep

    def view(self, offset: int, size: int) -> memoryview:
        """Raises `ValueError` for what lies outside."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} lie outside of the shared memory")
        return self._view[offset : offset + size]

    def close(self) -> None:
        """What still has a view keeps the memory until it drops it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._view.release()
            with contextlib.suppress(BufferError):  # unmapped with the last view
                self._map.close()

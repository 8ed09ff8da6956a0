"""System shared memory that clients registered: their tensors are read from it and written into it instead of travelling.

A region is a file that the client made under /dev/shm, named by a key without any slash but a first one; a link is never followed. The file
is read and written, not mapped: a client may cut it short at any moment, which would end a process that has it mapped by a signal. Every use
is checked against the region's size. A region that is unregistered while a request uses it stays open until that request ends.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from trivium.errors import InvalidRequest, ModelNotFound, Overloaded, UnsupportedFeature
from trivium.infer import Buffer

DIRECTORY: Final = "/dev/shm"
MAX_REGIONS: Final = 4096
MAX_BYTES: Final = 2**40
_KEY: Final = re.compile(r"/?[A-Za-z0-9._-]{1,250}")


class SharedFile:
    """An open file under /dev/shm, closed with its last user."""

    __slots__ = ("_descriptor",)

    def __init__(self, key: str, end: int) -> None:
        """Raises `InvalidRequest` unless it is a regular file of at least `end` bytes."""
        self._descriptor = -1
        if _KEY.fullmatch(key) is None or key.removeprefix("/") in (".", ".."):
            raise _not_openable(key)
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(os.path.join(DIRECTORY, key.removeprefix("/")), flags)
        except OSError:
            raise _not_openable(key) from None
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _not_openable(key)
        if end > status.st_size:
            raise InvalidRequest(f"failed to register shared memory region '{key}': invalid args, it is smaller than offset and byte_size say")

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Fewer bytes if the file has become shorter."""
        return os.pread(self._descriptor, size, start)

    def write(self, start: int, data: Buffer) -> bool:
        """Whether all of it fitted into the file as it is now."""
        if start + len(data) > os.fstat(self._descriptor).st_size:
            return False
        return os.pwrite(self._descriptor, data, start) == len(data)


@dataclass(frozen=True, kw_only=True)
class Region:
    name: str
    key: str
    offset: int
    byte_size: int
    file: SharedFile


@dataclass(frozen=True, kw_only=True)
class RegionSlice:
    """`byte_size` bytes of a region, from `offset` on."""

    region: Region
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """Raises `InvalidRequest` if the client has cut its file short."""
        data = self.region.file.read(self.region.offset + self.offset, self.byte_size)
        if len(data) != self.byte_size:
            raise InvalidRequest(f"Shared memory region '{self.region.name}' has become smaller than it was registered with")
        return data

    def write(self, data: Buffer, output: str) -> None:
        """Raises `InvalidRequest` for data larger than the slice."""
        if len(data) > self.byte_size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) "
                f"should be at least {len(data)} bytes to hold the results"
            )
        if not self.region.file.write(self.region.offset + self.offset, data):
            raise InvalidRequest(f"Shared memory region '{self.region.name}' has become smaller than it was registered with")


class SharedMemoryRegions:
    """Registered regions by name. Changed by the event loop's thread only; any thread may take slices."""

    def __init__(self, *, is_allowed: bool = True) -> None:
        self._is_allowed = is_allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises `InvalidRequest` for a key, offset or size that isn't one of a file under /dev/shm."""
        if not self._is_allowed:
            raise UnsupportedFeature("This server takes no shared memory from clients: it was started with --no-allow-client-shm.")
        if name in self._regions:
            raise InvalidRequest(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MAX_REGIONS:
            raise Overloaded(f"{MAX_REGIONS} shared memory regions are registered already")
        if offset < 0 or byte_size < 1 or offset + byte_size > MAX_BYTES:
            raise InvalidRequest(f"invalid offset or byte_size for shared memory region '{name}'")
        self._regions[name] = Region(name=name, key=key, offset=offset, byte_size=byte_size, file=SharedFile(key, offset + byte_size))

    def unregister(self, name: str) -> None:
        """Of a region that isn't there: nothing, as in Triton."""
        self._regions.pop(name, None)

    def unregister_all(self) -> None:
        self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        """One region, or all if `name` is empty. Raises `ModelNotFound` for one that isn't registered."""
        if not name:
            return list(self._regions.values())
        region = self._regions.get(name)
        if region is None:
            raise ModelNotFound(f"Unable to find system shared memory region: '{name}'")
        return [region]

    def slice(self, name: str, offset: int, byte_size: int) -> RegionSlice:
        """Raises `ModelNotFound` for an unknown region, `InvalidRequest` for a range outside it."""
        region = self._regions.get(name)
        if region is None:
            raise ModelNotFound(f"Unable to find shared memory region: '{name}'")
        if offset < 0 or byte_size < 0 or offset + byte_size > region.byte_size:
            raise InvalidRequest(f"Invalid offset or byte size for shared memory region: '{name}'")
        return RegionSlice(region=region, offset=offset, byte_size=byte_size)


def _not_openable(key: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to open shared memory region: '{key}'")

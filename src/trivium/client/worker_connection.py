"""The server's end of a worker instance's socket pair and shared memory: frames in and out, on the event loop, without a task."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

import msgspec

from trivium.infer import Buffer, Tensor
from trivium.protocol.shared_region import SharedRegion
from trivium.protocol.worker_messages import (
    HEADER_SIZE,
    INLINE_LIMIT,
    FromWorker,
    Release,
    ToWorker,
    WireTensor,
    encode_frame,
    from_worker_decoder,
)

REGION_SIZE: Final = 256 * 2**20
"""Bytes of address space a direction; only what is used takes memory. What finds no room goes through the socket."""
_BUFFER_SIZE: Final = 256 * 1024


class WorkerConnection(asyncio.BufferedProtocol):
    """`on_message` gets each message in order, `on_lost` is called once, when the process has gone or sent nonsense."""

    def __init__(self, on_message: Callable[[FromWorker], None], on_lost: Callable[[], None]) -> None:
        self.outbound = SharedRegion.create(REGION_SIZE)
        self.inbound = SharedRegion.create(REGION_SIZE)
        self._ours, self._theirs = socket.socketpair()
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))
        self._filled = 0
        self._rest: bytearray | None = None
        """A frame too large for the buffer, `_filled` bytes of which are there."""
        self._out: list[bytes | bytearray] = []
        self._to_release: list[int] = []

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """What the worker process inherits: its socket, the region it reads, the region it writes."""
        return self._theirs.fileno(), self.outbound.fd, self.inbound.fd

    async def open(self) -> None:
        """Once the process has its descriptors."""
        self._theirs.close()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._ours)

    def close(self) -> None:
        """Safe to call twice."""
        for side in (self._ours, self._theirs):
            side.close()
        if self._transport is not None:
            self._transport.abort()
        self.outbound.close()
        self.inbound.close()

    # -- sending ------------------------------------------------------------------------------------------------------------------

    def send(self, message: ToWorker) -> None:
        """Never waits; what is sent to a process that has gone is lost."""
        # Messages of one turn of the loop go out as one write: each write wakes the worker, which costs more than all else that is done here.
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(encode_frame(message))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def pack(self, tensor: Tensor) -> WireTensor:
        data = tensor.data
        size = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
        if size >= INLINE_LIMIT:
            offset = self.outbound.put(data)
            if offset is not None:
                return WireTensor(tensor.name, tensor.datatype, tensor.shape, memoryview(b""), offset, size)
        return WireTensor(tensor.name, tensor.datatype, tensor.shape, cast(memoryview, data))

    def unpack(self, wire: WireTensor) -> Tensor:
        """Raises `ValueError` for a place outside of the region."""
        data: Buffer = wire.data
        if wire.offset >= 0:
            # Copied: who gets the response may keep it, and the block is the worker's to use again.
            data = bytes(self.inbound.view(wire.offset, wire.size))
            self._to_release.append(wire.offset)
        return Tensor(wire.name, wire.datatype, wire.shape, data)

    # -- receiving ----------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        whole = self._buffer if self._rest is None else memoryview(self._rest)
        return whole[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            if self._rest is None:
                self._take_frames()
            elif self._filled == len(self._rest):
                frame, self._rest, self._filled = self._rest, None, 0
                self._handle(frame)
        except (msgspec.DecodeError, ValueError):
            # Only a process whose memory is damaged, or that isn't ours any more, sends what can't be read.
            if self._transport is not None:
                self._transport.abort()
            return
        if self._to_release:
            offsets, self._to_release = self._to_release, []
            self.send(Release(offsets))

    def _take_frames(self) -> None:
        buffer, filled = self._buffer, self._filled
        position = 0
        while filled - position >= HEADER_SIZE:
            start = position + HEADER_SIZE
            size = int.from_bytes(buffer[position:start], "little")
            if start + size > filled:
                if size > _BUFFER_SIZE - HEADER_SIZE:
                    self._rest = bytearray(size)
                    self._rest[: filled - start] = buffer[start:filled]
                    self._filled = filled - start
                    return
                break
            position = start + size
            self._handle(bytes(buffer[start:position]))
        rest = filled - position
        if position and rest:
            buffer[:rest] = bytes(buffer[position:filled])
        self._filled = rest

    def _handle(self, frame: bytes | bytearray) -> None:
        message = from_worker_decoder.decode(frame)
        if isinstance(message, Release):
            for offset in message.offsets:
                self.outbound.free(offset)
        else:
            self._on_message(message)

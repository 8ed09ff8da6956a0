"""Header blocks put together from HEADERS and the CONTINUATION frames behind it."""

from __future__ import annotations

from typing import Final

from trivium.frontends.http2.errors import ErrorCode, PeerError
from trivium.frontends.http2.frames import Flag, FrameType
from trivium.frontends.http2.reader import without_padding

MAX_CONTINUATIONS: Final = 16
_PRIORITY_BYTES: Final = 5

Block = tuple[int, int, bytes]
"""Flags of its HEADERS frame, stream, and the block itself."""


class HeaderBlocks:
    """At most one block is open at a time; nothing else may come between its frames."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._block = bytearray()
        self._stream_id = 0
        self._flags = 0
        self._num_continuations = 0
        self.is_open = False

    def check(self, kind: int, stream_id: int) -> None:
        """Raises `PeerError` for a frame that interrupts the open block."""
        if self.is_open and (kind != FrameType.CONTINUATION or stream_id != self._stream_id):
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "headers are interrupted by another frame")

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """A HEADERS frame. Returns the block if that was all of it."""
        payload = without_padding(flags, payload)
        if flags & Flag.PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "headers are cut off")
            payload = payload[_PRIORITY_BYTES:]
        if len(payload) > self._max_bytes:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large")
        if flags & Flag.END_HEADERS:
            return flags, stream_id, payload
        self._block = bytearray(payload)
        self._stream_id, self._flags, self._num_continuations, self.is_open = stream_id, flags, 0, True
        return None

    def go_on(self, flags: int, payload: bytes) -> Block | None:
        """A CONTINUATION frame."""
        if not self.is_open:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "headers go on that have not begun")
        self._block += payload
        self._num_continuations += 1
        if self._num_continuations > MAX_CONTINUATIONS or len(self._block) > self._max_bytes:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large")
        if not flags & Flag.END_HEADERS:
            return None
        self.is_open = False
        return self._flags, self._stream_id, bytes(self._block)

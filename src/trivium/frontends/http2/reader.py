"""Bytes of a connection cut into frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trivium.frontends.http2.errors import ErrorCode, PeerError
from trivium.frontends.http2.frames import HEADER, HEADER_BYTES, PREFACE, Flag

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream and payload."""
_STREAM_BITS: Final = 0x7FFF_FFFF


class FrameReader:
    """Holds what has arrived of one frame at most."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._needed = 0
        """Bytes of the frame that has begun, as far as that is known."""
        self.has_preface = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """To be read to its end. Raises `PeerError` for what is no HTTP/2 and for frames that are too large."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        position = 0
        if not self.has_preface:
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._buffer += data
                return
            if not data.startswith(PREFACE):
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 only")
            self.has_preface = True
            position = len(PREFACE)
        size = len(data)
        self._needed = 0
        while position + HEADER_BYTES <= size:
            high, low, kind, flags, stream_id = HEADER.unpack_from(data, position)
            length = high << 16 | low
            if length > self._max_frame_bytes:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
            start = position + HEADER_BYTES
            if start + length > size:
                self._needed = HEADER_BYTES + length
                break
            position = start + length
            yield kind, flags, stream_id & _STREAM_BITS, data[start:position]
        if position < size:
            self._buffer += data[position:]


def without_padding(flags: int, payload: bytes) -> bytes:
    """What a frame carries beside its padding."""
    if not flags & Flag.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "padding is larger than its frame")
    return payload[1 : len(payload) - payload[0]]

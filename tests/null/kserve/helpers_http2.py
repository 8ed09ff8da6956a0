"""A client's side of an HTTP/2 connection without any socket: frames in, and what the server wrote as frames."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import hpack

from trivium.frontends.http2.connection import Http2Connection, Http2Limits
from trivium.frontends.http2.frames import HEADER, HEADER_BYTES, PREFACE, Flag, FrameType, frame, settings
from trivium.frontends.http2.hpack import Headers
from trivium.frontends.http2.stream import Stream

POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"test"), (b"content-type", b"application/grpc")]


class FakeTransport:
    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> Any:
        return None


@dataclass
class Received:
    """A handler that only takes notes."""

    stream: Stream
    headers: Headers
    data: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    was_reset: bool = False

    def on_data(self, data: bytes) -> None:
        self.data += data

    def on_end(self) -> None:
        self.has_ended = True

    def on_reset(self) -> None:
        self.was_reset = True


class Client:
    """To be made inside a running loop."""

    def __init__(self, limits: Http2Limits | None = None, *, preface: bytes = PREFACE + settings({})) -> None:
        self.requests: list[Received] = []
        self.is_lost = False
        self.connection = Http2Connection(self._accept, limits or Http2Limits(), self._on_lost)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        if preface:
            self.connection.data_received(preface)

    def _on_lost(self, connection: Http2Connection) -> None:
        self.is_lost = True

    def _accept(self, stream: Stream, headers: Headers) -> Received:
        self.requests.append(Received(stream, headers))
        return self.requests[-1]

    def send(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def request(self, stream_id: int, *, ends: bool = False, headers: list[tuple[bytes, bytes]] | None = None) -> bytes:
        """A HEADERS frame."""
        flags = Flag.END_HEADERS | (Flag.END_STREAM if ends else 0)
        return frame(FrameType.HEADERS, flags, stream_id, self.encoder.encode(headers or POST))

    async def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of each frame the server has written since the last call."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        data, self.transport.written = bytes(self.transport.written), bytearray()
        found: list[tuple[int, int, int, bytes]] = []
        position = 0
        while position < len(data):
            high, low, kind, flags, stream_id = HEADER.unpack_from(data, position)
            start = position + HEADER_BYTES
            position = start + (high << 16 | low)
            assert position <= len(data), "a frame is cut off"
            found.append((kind, flags, stream_id, data[start:position]))
        return found

    async def goaway_code(self) -> int | None:
        """Why the server closed the connection; None: it did not."""
        codes = [int.from_bytes(payload[4:8]) for kind, _, _, payload in await self.frames() if kind == FrameType.GOAWAY]
        return codes[0] if codes else None

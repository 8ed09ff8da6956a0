"""gRPC over HTTP/2 (its PROTOCOL-HTTP2 document): messages behind five bytes of prefix, a status in the trailers."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from trivium.errors import InvalidRequest, PayloadTooLarge, TriviumError, UnsupportedFeature
from trivium.frontends.http2.errors import ErrorCode, StreamError
from trivium.frontends.http2.hpack import Headers, encode
from trivium.frontends.http2.stream import Stream
from trivium.frontends.kserve.compression import decompress
from trivium.frontends.kserve.errors import grpc_code_of

PREFIX_BYTES: Final = 5


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_HEAD_BLOCK: Final = encode(_HEAD)
_COMPRESSED_HEAD_BLOCKS: Final = {name: encode((*_HEAD, (b"grpc-encoding", name))) for name in (b"gzip", b"deflate")}
_OK_BLOCK: Final = encode([(b"grpc-status", b"0")])
_ACCEPTED: Final = (b"grpc-accept-encoding", b"identity,deflate,gzip")
_COMPRESSORS: Final[dict[bytes, Callable[[bytes], bytes]]] = {
    b"gzip": lambda data: gzip.compress(data, 1, mtime=0),
    b"deflate": lambda data: zlib.compress(data, 1),
}
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_DETAIL_BYTES: Final = 4096
"""Of a status's text: it travels as a header, and clients take 8 KiB of these."""


class Messages(Protocol):
    """What a method makes of the messages of one call. `on_message` and `on_end` may raise `TriviumError`, which ends the call."""

    def on_message(self, data: bytes) -> None: ...

    def on_end(self) -> None:
        """The client has sent its last one."""
        ...

    def on_cancel(self) -> None:
        """The call has ended without an answer: nobody waits for one any more."""
        ...


class OneMessage:
    """Of a unary call: the one message that must come."""

    __slots__ = ("_message",)

    def __init__(self) -> None:
        self._message: bytes | None = None

    def on_message(self, data: bytes) -> None:
        if self._message is not None:
            raise InvalidRequest("the method takes one message")
        self._message = data

    def message(self) -> bytes:
        """Once the client has sent its last. Raises `InvalidRequest` if none came."""
        if self._message is None:
            raise InvalidRequest("the request has no message")
        return self._message


@dataclass(kw_only=True)
class WireLimits:
    """Shared by the calls of one server."""

    max_message_bytes: int
    max_buffered_bytes: int
    """Of messages that are not complete, of all calls together."""
    message_timeout_s: float
    """For a message that has begun."""
    compression: bytes = b""
    """Of answers, for clients that take it; empty: none."""
    num_buffered_bytes: int = field(default=0, init=False)


class GrpcCall:
    """The handler of a stream: takes messages out of its data, and puts answers back."""

    __slots__ = (
        "_compressor",
        "_deadline",
        "_encoding",
        "_has_headers",
        "_limits",
        "_need",
        "_parts",
        "_size",
        "_stream",
        "_timer",
        "headers",
        "messages",
    )

    def __init__(self, stream: Stream, headers: Headers, limits: WireLimits) -> None:
        self._stream = stream
        self._limits = limits
        self.headers = headers
        self.messages: Messages | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._need = PREFIX_BYTES
        self._encoding = b"identity"
        self._compressor = b""
        self._has_headers = False
        self._deadline: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, messages: Messages) -> None:
        """Raises `UnsupportedFeature` for an encoding that isn't known, `InvalidRequest` for a timeout that is none."""
        self.messages = messages
        for name, value in self.headers:
            if name == b"grpc-timeout":
                self._deadline = asyncio.get_running_loop().call_later(_seconds(value), self._on_deadline)
            elif name == b"grpc-encoding":
                self._encoding = value
                if value not in (b"identity", b"gzip", b"deflate"):
                    raise UnsupportedFeature(f"Compression algorithm '{value[:32].decode('latin-1')}' is not supported")
            elif name == b"grpc-accept-encoding" and self._limits.compression in value.replace(b" ", b"").split(b","):
                self._compressor = self._limits.compression

    # -- answers ------------------------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Answers that the client leaves unread."""
        return self._stream.queued_bytes

    def send(self, data: bytes) -> None:
        """One message."""
        flag = 0
        if self._compressor:
            flag, data = 1, _COMPRESSORS[self._compressor](data)
        if not self._has_headers:
            self._has_headers = True
            self._stream.send_headers(_COMPRESSED_HEAD_BLOCKS[self._compressor] if self._compressor else _HEAD_BLOCK)
        self._stream.send_data(b"%c%b%b" % (flag, len(data).to_bytes(4), data))

    def finish(self) -> None:
        """The call went well."""
        self._stop()
        if not self._has_headers:
            self._stream.send_headers(_HEAD_BLOCK)
        self._stream.send_trailers(_OK_BLOCK)

    def fail(self, status: Status, text: str) -> None:
        self._stop()
        trailers = [(b"grpc-status", b"%d" % status), (b"grpc-message", _percent_encoded(text))]
        if status is Status.UNIMPLEMENTED:
            trailers.append(_ACCEPTED)
        if self._has_headers:
            self._stream.send_trailers(encode(trailers))
        else:
            self._stream.send_headers(encode((*_HEAD, *trailers)), ends_stream=True)

    def fail_with(self, error: TriviumError) -> None:
        self.fail(Status[grpc_code_of(error)], error.message)

    # -- the stream's handler -----------------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        messages = self.messages
        if messages is None:
            return
        if not self._parts and len(data) >= PREFIX_BYTES and len(data) == PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES]):
            # A message in one frame: nearly always.
            self._take(messages, data[0], data[PREFIX_BYTES:])
            return
        self._parts.append(data)
        self._size += len(data)
        self._limits.num_buffered_bytes += len(data)
        try:
            self._take_complete(messages)
        except TriviumError as error:
            self._refuse(error)
        self._check_buffered()

    def _take_complete(self, messages: Messages) -> None:
        while self._size >= self._need and self.messages is not None:
            if self._need == PREFIX_BYTES:
                self._join()
                length = int.from_bytes(self._parts[0][1:PREFIX_BYTES])
                self._check_size(length)
                self._need = PREFIX_BYTES + length
                if self._size < self._need:
                    break
            self._join()
            whole = self._parts[0]
            self._keep(whole[self._need :])
            end, self._need = self._need, PREFIX_BYTES
            self._take(messages, whole[0], whole[PREFIX_BYTES:end])

    def on_end(self) -> None:
        if self.messages is None:
            return
        if self._size:
            self._refuse(InvalidRequest("the request ends inside a message"))
            return
        self._stop_timer()
        try:
            self.messages.on_end()
        except TriviumError as error:
            self._refuse(error)

    def on_reset(self) -> None:
        messages = self.messages
        self._stop()
        if messages is not None:
            messages.on_cancel()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _take(self, messages: Messages, flag: int, data: bytes) -> None:
        try:
            self._check_size(len(data))
            if flag:
                if flag != 1 or self._encoding == b"identity":
                    raise StreamError(ErrorCode.PROTOCOL_ERROR, "a message is compressed in no known way")
                data = decompress(data, self._encoding, max_bytes=self._limits.max_message_bytes)
            messages.on_message(data)
        except TriviumError as error:
            self._refuse(error)

    def _check_size(self, length: int) -> None:
        limit = self._limits.max_message_bytes
        if length > limit:
            raise PayloadTooLarge(f"Received message larger than max ({length} vs. {limit})")

    def _check_buffered(self) -> None:
        if not self._size:
            self._stop_timer()
        elif self._limits.num_buffered_bytes > self._limits.max_buffered_bytes:
            self._refuse(PayloadTooLarge("the server holds too many messages that are not complete"))
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.message_timeout_s, self._on_message_timeout)

    def _join(self) -> None:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]

    def _keep(self, rest: bytes) -> None:
        self._limits.num_buffered_bytes -= self._size - len(rest)
        self._parts = [rest] if rest else []
        self._size = len(rest)

    def _refuse(self, error: TriviumError) -> None:
        """End the call from this side, whatever its method is doing."""
        messages = self.messages
        self.fail_with(error)
        if messages is not None:
            messages.on_cancel()

    def _on_deadline(self) -> None:
        messages = self.messages
        self.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if messages is not None:
            messages.on_cancel()

    def _on_message_timeout(self) -> None:
        self._refuse(InvalidRequest(f"a message did not arrive within {self._limits.message_timeout_s:g} s"))

    def _stop(self) -> None:
        self.messages = None
        self._keep(b"")
        self._stop_timer()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _seconds(value: bytes) -> float:
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise InvalidRequest("grpc-timeout is malformed")
    return int(found[1]) * _UNITS[found[2]]


def _percent_encoded(text: str) -> bytes:
    data = text.encode("utf-8", "replace")[:_MAX_DETAIL_BYTES]
    return b"".join(b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in data)

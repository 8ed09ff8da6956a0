"""A server's side of an HTTP/2 connection: frames in, streams out. Everything a peer can do too much of has a bound.

All that is written during one turn of the event loop goes out as one write: answers that are ready together cost one system call.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from trivium.frontends.http2.errors import ErrorCode, PeerError, StreamError
from trivium.frontends.http2.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    MAX_WINDOW,
    SETTING,
    SETTINGS_ACK,
    Flag,
    FrameType,
    Setting,
    frame,
    goaway,
    settings,
    window_update,
    word,
)
from trivium.frontends.http2.header_blocks import Block, HeaderBlocks
from trivium.frontends.http2.hpack import Decoder, Headers
from trivium.frontends.http2.reader import FrameReader, without_padding
from trivium.frontends.http2.stream import Stream, StreamHandler
from trivium.frontends.http2.timeout import Timeout
from trivium.frontends.http_protocol import KEEP_ALIVE_PROBES

logger = logging.getLogger(__name__)

FRAME_BYTES: Final = 1 << 20
"""Largest frame we take: large tensors come in few."""
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 64 << 20
MAX_STREAMS: Final = 1024
MAX_QUEUED_BYTES: Final = 512 << 20
"""Answers that one connection leaves unread."""
MAX_NOISE: Final = 2000
"""Frames that ask for nothing (pings, settings, resets, empty data) a peer may send beyond those that its requests account for."""
_NOISE_PER_REQUEST: Final = 4


Accept = Callable[[Stream, Headers], StreamHandler | None]
"""Gives the handler of a new request; it may answer at once, and then give None."""


@dataclass(frozen=True, kw_only=True)
class Http2Limits:
    max_header_bytes: int = 16 * 1024
    """Of a request's headers, as HTTP/2 counts them."""
    preface_timeout_s: float = 15.0
    """For the first bytes of a connection, and for headers that have begun."""
    write_timeout_s: float = 60.0


class Http2Connection(asyncio.Protocol):
    """Made by a server for each connection it accepts; `on_lost` is told when it is gone."""

    def __init__(self, accept: Accept, limits: Http2Limits, on_lost: Callable[[Http2Connection], None] = lambda connection: None) -> None:
        self._accept = accept
        self._limits = limits
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(max_frame_bytes=FRAME_BYTES)
        self._decoder = Decoder(max_list_bytes=limits.max_header_bytes)
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[Stream, None] = {}
        """Streams with data for which there was no window."""
        self._last_id = 0
        self._blocks = HeaderBlocks(max_bytes=limits.max_header_bytes)
        self._noise = 0
        self._receive_window = CONNECTION_WINDOW
        self._peer_window = DEFAULT_WINDOW
        self._out: list[bytes] = []
        self._is_draining = False
        self._header_timeout = Timeout(limits.preface_timeout_s, self.abort)
        self._write_timeout = Timeout(limits.write_timeout_s, self.abort)
        self._stall_timeout = Timeout(limits.write_timeout_s, self.abort)
        self.queued_bytes = 0
        """Of all streams, waiting for the peer."""
        self.send_window = DEFAULT_WINDOW
        self.peer_frame_bytes = DEFAULT_FRAME_BYTES

    # -- the connection -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's class is none of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in KEEP_ALIVE_PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._header_timeout.start()
        ours = {
            Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: self._limits.max_header_bytes,
        }
        self.write(settings(ours))
        self.write(window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timeout.stop()
        self._write_timeout.stop()
        self._stall_timeout.stop()
        self._transport = None
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._write_timeout.start()

    def resume_writing(self) -> None:
        self._write_timeout.stop()

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    def drain(self) -> None:
        """Take no new requests; close once those that are there have ended."""
        if not self._is_draining:
            self._is_draining = True
            self.write(goaway(self._last_id, ErrorCode.NO_ERROR))
            self._close_if_drained()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- writing ------------------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def wait_for_window(self, stream: Stream) -> None:
        """Until the peer says that it has read. One that reads nothing for too long loses the connection, one that leaves too much unread
        the stream."""
        self._waiting[stream] = None
        self._stall_timeout.start()
        if self.queued_bytes > MAX_QUEUED_BYTES:
            self._reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

    def forget(self, stream: Stream) -> None:
        """It has ended on this side."""
        stream.is_closed = True
        self._streams.pop(stream.id, None)
        self._waiting.pop(stream, None)
        if not self._waiting:
            self._stall_timeout.stop()
        self.queued_bytes -= stream.queued_bytes
        if self._is_draining:
            self._close_if_drained()

    # -- reading ------------------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        try:
            for kind, flags, stream_id, payload in self._reader.feed(data):
                if self._is_closing:
                    return
                self._on_frame(kind, flags, stream_id, payload)
        except PeerError as error:
            self._fail(error)
            return
        if self._header_timeout.is_running and self._reader.has_preface and not self._blocks.is_open:
            self._header_timeout.stop()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self._blocks.check(kind, stream_id)
        if kind == FrameType.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == FrameType.HEADERS:
            self._on_block(self._blocks.begin(flags, stream_id, payload))
        elif kind == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == FrameType.PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == FrameType.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == FrameType.RST_STREAM:
            self._on_rst_stream(stream_id, payload)
        elif kind == FrameType.CONTINUATION:
            self._on_block(self._blocks.go_on(flags, payload))
        elif kind == FrameType.PUSH_PROMISE:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "clients don't push")
        else:
            # PRIORITY, GOAWAY and what later RFCs add: nothing to do.
            self._count_noise()

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def _on_block(self, found: Block | None) -> None:
        if found is None:
            self._header_timeout.start()
            return
        flags, stream_id, block = found
        headers = self._decoder.decode(block)
        ends = bool(flags & Flag.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None or stream_id <= self._last_id:
            # Trailers of a request.
            if not ends:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "a request has headers in its middle")
            if stream is not None:
                self._end_request(stream)
            return
        if not stream_id & 1:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a client's streams have odd numbers")
        self._last_id = stream_id
        stream = Stream(self, stream_id, send_window=self._peer_window, receive_window=STREAM_WINDOW)
        if self._is_draining or len(self._streams) >= MAX_STREAMS:
            stream.reset(ErrorCode.REFUSED_STREAM)
            self._count_noise()
            return
        self._noise = max(0, self._noise - _NOISE_PER_REQUEST)
        self._streams[stream_id] = stream
        try:
            stream.handler = self._accept(stream, headers)
        except Exception:
            logger.exception("a request could not be begun")
            stream.reset(ErrorCode.INTERNAL_ERROR)
        if ends:
            self._end_request(stream)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        num_bytes = len(payload)
        self._receive_window -= num_bytes
        if self._receive_window < 0:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "more data than there was room for")
        if self._receive_window < CONNECTION_WINDOW // 2:
            self.write(window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id or stream_id == 0:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "data of a request that has not begun")
            # It was on its way when the stream ended; there is a window's worth of it at most.
            self._count_noise(0 if payload else 1)
            return
        if num_bytes > stream.receive_window or stream.is_request_ended:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "more data than there was room for")
        ends = bool(flags & Flag.END_STREAM)
        if flags & Flag.PADDED:
            payload = without_padding(flags, payload)
        if not payload and not ends:
            self._count_noise()
        stream.is_request_ended = ends
        stream.credit(num_bytes, STREAM_WINDOW)
        handler = stream.handler
        if handler is None:
            return
        if payload:
            self._tell(stream, handler.on_data, payload)
        if ends and not stream.is_closed:
            self._tell(stream, handler.on_end)

    def _end_request(self, stream: Stream) -> None:
        if stream.is_request_ended:
            return
        stream.is_request_ended = True
        if stream.handler is not None and not stream.is_closed:
            self._tell(stream, stream.handler.on_end)

    def _tell(self, stream: Stream, function: Callable[..., None], *args: bytes) -> None:
        """What goes wrong in a handler ends its stream, not the others."""
        try:
            function(*args)
        except StreamError as error:
            self._reset(stream, error.code)
        except Exception:
            logger.exception("a request failed")
            self._reset(stream, ErrorCode.INTERNAL_ERROR)

    def _on_rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "a reset has four bytes")
        if stream_id == 0 or stream_id > self._last_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a reset of a request that has not begun")
        # Requests that are taken back at once cost more than those that are answered.
        self._count_noise(_NOISE_PER_REQUEST + 1)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        self.forget(stream)
        self._tell_reset(stream)

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        stream.reset(code)
        self._tell_reset(stream)

    def _tell_reset(self, stream: Stream) -> None:
        if stream.handler is not None:
            stream.handler.on_reset()

    # -- the connection's own frames ----------------------------------------------------------------------------------------------

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0 or len(payload) % SETTING.size or (flags & Flag.ACK and payload):
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "settings are malformed")
        if flags & Flag.ACK:
            return
        self._count_noise()
        for name, value in SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
                self._change_windows(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value < 1 << 24:
                    raise PeerError(ErrorCode.PROTOCOL_ERROR, "a frame size is out of range")
                self.peer_frame_bytes = min(value, FRAME_BYTES)
        self.write(SETTINGS_ACK)

    def _change_windows(self, value: int) -> None:
        difference = value - self._peer_window
        self._peer_window = value
        for stream in list(self._streams.values()):
            stream.send_window += difference
            if stream.send_window > MAX_WINDOW:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        self._flush_waiting(list(self._waiting))

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "a window update has four bytes")
        increment = word(payload)
        if increment == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "a window update by nothing")
        if stream_id == 0:
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            self._flush_waiting(list(self._waiting))
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "a window of a request that has not begun")
            self._count_noise()
            return
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream in self._waiting:
            self._flush_waiting([stream])

    def _flush_waiting(self, streams: list[Stream]) -> None:
        """The peer has read something: those that still wait have all of the time again."""
        for stream in streams:
            self._waiting.pop(stream, None)
            stream.flush()
        self._stall_timeout.stop()
        if self._waiting:
            self._stall_timeout.start()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id != 0 or len(payload) != 8:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & Flag.ACK:
            self._count_noise()
            self.write(frame(FrameType.PING, Flag.ACK, 0, payload))

    def _count_noise(self, weight: int = 1) -> None:
        self._noise += weight
        if self._noise > MAX_NOISE:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    # -- the end ------------------------------------------------------------------------------------------------------------------

    def _fail(self, error: PeerError) -> None:
        logger.info("closing an HTTP/2 connection: %s", error)
        for stream in list(self._streams.values()):
            self._drop(stream)
        self.write(goaway(self._last_id, error.code, str(error)))
        self._close()

    def _close_if_drained(self) -> None:
        if not self._streams:
            self._close()

    def _close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

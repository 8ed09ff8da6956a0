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
from trivium.frontends.http2.hpack import Decoder, Headers
from trivium.frontends.http2.reader import FrameReader, without_padding
from trivium.frontends.http2.stream import Stream, StreamHandler
from trivium.frontends.http_protocol import KEEP_ALIVE_PROBES

logger = logging.getLogger(__name__)

FRAME_BYTES: Final = 1 << 20
"""Largest frame we take: large tensors come in few."""
STREAM_WINDOW: Final = 4 << 20
CONNECTION_WINDOW: Final = 64 << 20
MAX_STREAMS: Final = 1024
MAX_CONTINUATIONS: Final = 16
MAX_NOISE: Final = 2000
"""Frames that ask for nothing (pings, settings, resets, empty data) a peer may send beyond those that its requests account for."""
_NOISE_PER_REQUEST: Final = 4


@dataclass(frozen=True, kw_only=True)
class Http2Limits:
    max_header_bytes: int = 16 * 1024
    """Of a request's headers, as HTTP/2 counts them."""
    preface_timeout_s: float = 15.0
    """For the first bytes of a connection, and for headers that have begun."""
    write_timeout_s: float = 60.0


class Http2Connection(asyncio.Protocol):
    """`accept(stream, headers)` gives the handler of a new request; it may answer at once, and then give None."""

    def __init__(
        self, accept: Callable[[Stream, Headers], StreamHandler | None], limits: Http2Limits, connections: dict[Http2Connection, None]
    ) -> None:
        self._accept = accept
        self._limits = limits
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(max_frame_bytes=FRAME_BYTES)
        self._decoder = Decoder(max_list_bytes=limits.max_header_bytes)
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[Stream, None] = {}
        """Streams with data for which there was no window."""
        self._last_id = 0
        self._block: bytearray | None = None
        """Headers that go on in CONTINUATION frames."""
        self._block_stream = 0
        self._block_flags = 0
        self._num_continuations = 0
        self._noise = 0
        self._receive_window = CONNECTION_WINDOW
        self._peer_window = DEFAULT_WINDOW
        self._out: list[bytes] = []
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.send_window = DEFAULT_WINDOW
        self.peer_frame_bytes = DEFAULT_FRAME_BYTES

    # -- the connection -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's class is none of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._connections[self] = None
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in KEEP_ALIVE_PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._start_timer()
        ours = {
            Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: self._limits.max_header_bytes,
        }
        self.write(settings(ours))
        self.write(window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        self._stop_timer()
        self._stop_write_timer()
        self._transport = None
        for stream in list(self._streams.values()):
            self._drop(stream)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._stop_write_timer()
        self._write_timer = self._loop.call_later(self._limits.write_timeout_s, self._transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()

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
        self._waiting[stream] = None

    def forget(self, stream: Stream) -> None:
        """It has ended on this side."""
        stream.is_closed = True
        self._streams.pop(stream.id, None)
        self._waiting.pop(stream, None)
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
        if self._timer is not None and self._reader.has_preface and self._block is None:
            self._stop_timer()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != FrameType.CONTINUATION or stream_id != self._block_stream):
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "headers are interrupted by another frame")
        if kind == FrameType.DATA:
            self._on_data(flags, stream_id, payload)
        elif kind == FrameType.HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == FrameType.PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == FrameType.SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == FrameType.RST_STREAM:
            self._on_rst_stream(stream_id, payload)
        elif kind == FrameType.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == FrameType.PUSH_PROMISE:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "clients don't push")
        else:
            # PRIORITY, GOAWAY and what later RFCs add: nothing to do.
            self._count_noise()

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        payload = without_padding(flags, payload)
        if flags & Flag.PRIORITY:
            if len(payload) < 5:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "headers are cut off")
            payload = payload[5:]
        if flags & Flag.END_HEADERS:
            self._on_block(flags, stream_id, payload)
            return
        self._block = bytearray(payload)
        self._block_stream, self._block_flags, self._num_continuations = stream_id, flags, 0
        self._start_timer()

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "headers go on that have not begun")
        self._block += payload
        self._num_continuations += 1
        if self._num_continuations > MAX_CONTINUATIONS or len(self._block) > self._limits.max_header_bytes:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "the headers are too large")
        if flags & Flag.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(self._block_flags, self._block_stream, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
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
            return
        self._noise = max(0, self._noise - _NOISE_PER_REQUEST)
        self._streams[stream_id] = stream
        stream.handler = self._accept(stream, headers)
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
            stream.reset(error.code)
        except Exception:
            logger.exception("a request failed")
            stream.reset(ErrorCode.INTERNAL_ERROR)

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
        self._flush_waiting()

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
            self._flush_waiting()
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "a window of a request that has not begun")
            self._count_noise()
            return
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            stream.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif stream in self._waiting:
            del self._waiting[stream]
            stream.flush()

    def _flush_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for stream in waiting:
            stream.flush()

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

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.preface_timeout_s, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

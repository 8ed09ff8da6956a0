"""One request and its response on a connection: what its handler sees, and what waits for the peer's window to open."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from trivium.frontends.http2.errors import ErrorCode
from trivium.frontends.http2.frames import HEADER, Flag, FrameType, frame, rst_stream, window_update

if TYPE_CHECKING:
    from trivium.frontends.http2.connection import Http2Connection


class StreamHandler(Protocol):
    """Called by the connection. May raise `StreamError`."""

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None:
        """The request is complete."""
        ...

    def on_reset(self) -> None:
        """The peer gave up, or the connection is gone: nothing can be sent any more."""
        ...


class Stream:
    """`send_*` are for its handler. Nothing happens once it is closed."""

    __slots__ = (
        "_connection",
        "_queue",
        "_queued_bytes",
        "_trailers",
        "handler",
        "id",
        "is_closed",
        "is_request_ended",
        "receive_window",
        "send_window",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, *, send_window: int, receive_window: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.handler: StreamHandler | None = None
        self.is_request_ended = False
        self.is_closed = False
        self._queue: deque[memoryview] | None = None
        self._queued_bytes = 0
        self._trailers: bytes | None = None

    @property
    def queued_bytes(self) -> int:
        """Data that waits for the peer to read."""
        return self._queued_bytes

    def send_headers(self, block: bytes, *, ends_stream: bool = False) -> None:
        if self.is_closed:
            return
        flags = Flag.END_HEADERS | Flag.END_STREAM if ends_stream else Flag.END_HEADERS
        self._connection.write(frame(FrameType.HEADERS, flags, self.id, block))
        if ends_stream:
            self._finish()

    def send_data(self, data: bytes) -> None:
        if self.is_closed:
            return
        connection = self._connection
        size = len(data)
        if self._queue is None and size <= self.send_window and size <= connection.send_window and size <= connection.peer_frame_bytes:
            self.send_window -= size
            connection.send_window -= size
            connection.write(HEADER.pack(size >> 16, size & 0xFFFF, 0, 0, self.id))
            connection.write(data)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(memoryview(data))
        self._queued_bytes += size
        connection.queued_bytes += size
        self.flush()

    def send_trailers(self, block: bytes) -> None:
        """The end, once all data is out."""
        if self.is_closed:
            return
        if self._queue:
            self._trailers = block
            connection = self._connection
            connection.wait_for_window(self)
            return
        self.send_headers(block, ends_stream=True)

    def reset(self, code: ErrorCode) -> None:
        """End it without an answer."""
        if not self.is_closed:
            self._connection.write(rst_stream(self.id, code))
            self._connection.forget(self)

    def flush(self) -> None:
        """Send as much as the windows let through."""
        queue, connection = self._queue, self._connection
        while queue:
            room = min(self.send_window, connection.send_window, connection.peer_frame_bytes)
            if room <= 0:
                connection.wait_for_window(self)
                return
            part = queue[0][:room]
            if len(part) == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][room:]
            self.send_window -= len(part)
            connection.send_window -= len(part)
            self._queued_bytes -= len(part)
            connection.queued_bytes -= len(part)
            connection.write(frame(FrameType.DATA, 0, self.id, bytes(part)))
        self._queue = None
        if self._trailers is not None:
            block, self._trailers = self._trailers, None
            self.send_headers(block, ends_stream=True)

    def credit(self, num_bytes: int, full_window: int) -> None:
        """The peer used up `num_bytes` of the window it was given: open it again when half is gone."""
        self.receive_window -= num_bytes
        if not self.is_request_ended and self.receive_window < full_window // 2:
            self._connection.write(window_update(self.id, full_window - self.receive_window))
            self.receive_window = full_window

    def _finish(self) -> None:
        # A response may be complete before its request: the rest of that is not wanted.
        if not self.is_request_ended:
            self._connection.write(rst_stream(self.id, ErrorCode.NO_ERROR))
        self._connection.forget(self)

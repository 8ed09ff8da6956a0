"""`Link`: a worker instance's connection to the server. Blocking, and any thread may use it.

There is no thread that only reads: whoever waits for something reads the socket and hands out what arrives for others, so that a batch
wakes the thread that runs it. A model with work of its own in the background starts a reader (`read_in_background`).
"""

from __future__ import annotations

import itertools
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

import numpy as np

from trivium.infer import Buffer, DataType
from trivium.protocol.shared_region import SharedRegion
from trivium.protocol.worker_messages import (
    HEADER_SIZE,
    INLINE_LIMIT,
    Batch,
    CallResponse,
    Cancel,
    ControlReply,
    FromWorker,
    Release,
    Setup,
    Shutdown,
    ToWorker,
    WireTensor,
    encode_frame,
    to_worker_decoder,
)

_BUFFER_SIZE: Final = 256 * 1024


class Link:
    """`inbox` holds batches that came; `cancelled` the requests nobody waits for. `is_closed`: the server has gone or wants the end."""

    def __init__(self, sock: socket.socket, inbound: SharedRegion, outbound: SharedRegion) -> None:
        self.inbox: deque[Batch] = deque()
        self.setup: Setup | None = None
        self.cancelled: set[int] = set()
        self.is_closed = False
        self._socket = sock
        self._inbound = inbound
        self._outbound = outbound
        self._outbound_lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._turn = threading.Condition()
        self._has_reader = False
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))
        self._filled = 0
        self._released: deque[int] = deque()
        self._keys = itertools.count(1)
        self._replies: dict[int, SimpleQueue[CallResponse | ControlReply | None]] = {}
        self._background: threading.Thread | None = None

    # -- sending ------------------------------------------------------------------------------------------------------------------

    def send(self, message: FromWorker) -> None:
        """Raises `OSError` when the server has gone."""
        frame = encode_frame(message)
        if self._released:
            frame += encode_frame(Release(list(self._take_released())))
        with self._send_lock:
            self._socket.sendall(frame)

    def _take_released(self) -> list[int]:
        offsets: list[int] = []
        while self._released:
            try:
                offsets.append(self._released.popleft())
            except IndexError:  # another thread took it
                break
        return offsets

    def pack(self, name: str, datatype: DataType, shape: tuple[int, ...], data: Buffer) -> WireTensor:
        view = memoryview(data)
        if view.nbytes >= INLINE_LIMIT:
            with self._outbound_lock:
                offset = self._outbound.put(view)
            if offset is not None:
                return WireTensor(name, datatype, shape, memoryview(b""), offset, view.nbytes)
        return WireTensor(name, datatype, shape, view)

    def unpack(self, tensor: WireTensor) -> memoryview:
        """The tensor's bytes, writable. A block of shared memory is handed back once nothing refers to them any more."""
        if tensor.offset < 0:
            return tensor.data
        block = np.frombuffer(self._inbound.view(tensor.offset, tensor.size), np.uint8)
        weakref.finalize(block, self._released.append, tensor.offset).atexit = False
        return block.data

    # -- receiving ----------------------------------------------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        """Wait for one; None at the end."""
        self.pump(lambda: bool(self.inbox))
        return self.inbox.popleft() if self.inbox else None

    def pump(self, until: Callable[[], bool]) -> bool:
        """Handle what arrives until `until()`; False: the link was closed before."""
        while True:
            with self._turn:
                while self._has_reader and not until() and not self.is_closed:
                    self._turn.wait()
                if until():
                    return True
                if self.is_closed:
                    return False
                self._has_reader = True
            try:
                self._read(0)
            finally:
                with self._turn:
                    self._has_reader = False
                    self._turn.notify_all()

    def poll(self) -> None:
        """Handle what has arrived."""
        with self._turn:
            if self._has_reader or self.is_closed:
                return
            self._has_reader = True
        try:
            self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        finally:
            with self._turn:
                self._has_reader = False
                self._turn.notify_all()

    def read_in_background(self) -> None:
        """From now on a thread of its own reads: cancellations and replies come in also while nobody waits."""
        if self._background is None:
            self._background = threading.Thread(target=self.pump, args=(lambda: False,), name="link-reader", daemon=True)
            self._background.start()

    def _read(self, flags: int) -> None:
        num_read = self._socket.recv_into(self._buffer[self._filled :], 0, flags)
        if num_read == 0:
            self._close()
            return
        self._filled += num_read
        position = 0
        while self._filled - position >= HEADER_SIZE:
            start = position + HEADER_SIZE
            end = start + int.from_bytes(self._buffer[position:start], "little")
            if end <= self._filled:
                frame = bytearray(self._buffer[start:end])
            elif end - start > _BUFFER_SIZE - HEADER_SIZE:
                frame = self._read_rest(start, end)
                end = self._filled
            else:
                break
            position = end
            # One copy a frame, which its tensors keep as long as they need it.
            self._handle(to_worker_decoder.decode(frame))
        rest = self._filled - position
        if position and rest:
            self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest

    def _read_rest(self, start: int, end: int) -> bytearray:
        """The frame of which the buffer's end is the beginning."""
        frame = bytearray(end - start)
        view = memoryview(frame)
        have = self._filled - start
        view[:have] = self._buffer[start : self._filled]
        while have < len(frame):
            num_read = self._socket.recv_into(view[have:])
            if num_read == 0:
                raise EOFError("the server closed the connection in the middle of a message")
            have += num_read
        return frame

    def _handle(self, message: ToWorker) -> None:
        match message:
            case Batch():
                self.inbox.append(message)
            case Release():
                with self._outbound_lock:
                    for offset in message.offsets:
                        self._outbound.free(offset)
            case Cancel():
                self.cancelled.add(message.key)
            case CallResponse() | ControlReply():
                replies = self._replies.get(message.key)
                if replies is not None:
                    replies.put(message)
            case Setup():
                self.setup = message
            case Shutdown():
                self._close()

    def _close(self) -> None:
        self.is_closed = True
        for replies in self._replies.values():
            replies.put(None)

    # -- questions to the server --------------------------------------------------------------------------------------------------

    def open_exchange(self) -> Exchange:
        key = next(self._keys)
        replies: SimpleQueue[CallResponse | ControlReply | None] = SimpleQueue()
        self._replies[key] = replies
        if self.is_closed:
            replies.put(None)
        return Exchange(self, key, replies)

    def end_exchange(self, key: int) -> None:
        self._replies.pop(key, None)


class Exchange:
    """One question and its replies, numbered `key`."""

    def __init__(self, link: Link, key: int, replies: SimpleQueue[CallResponse | ControlReply | None]) -> None:
        self.key = key
        self._link = link
        self._replies = replies

    def get(self) -> CallResponse | ControlReply:
        """The next reply. Raises `ConnectionError` when the server has gone."""
        self._link.pump(lambda: not self._replies.empty())
        reply = None if self._replies.empty() else self._replies.get()
        if reply is None:
            raise ConnectionError("the server has gone")
        return reply

    def close(self) -> None:
        self._link.end_exchange(self.key)

"""The engine's end of the local socket: a ROUTER, so that several clients can share one engine."""

from __future__ import annotations

import contextlib
import logging
import socket

import msgspec
import zmq

from trivium.errors import InternalError
from trivium.protocol.messages import FromEngine, ToEngine, decode_to_engine, encode, refusal

logger = logging.getLogger(__name__)


class ZmqMailbox:
    """Implements `core.Mailbox` over `ipc://`. Blocks in the kernel when asked to wait; never polls with a timeout."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        # Backpressure belongs to the request queue, where a client is told; a dropped message would hang its request.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def wake(self) -> None:
        """From any thread: a `receive` that blocks, or the next one that would, returns, perhaps with nothing."""
        with contextlib.suppress(BlockingIOError):  # full of wakes that were not read yet: one is enough
            self._waker.send(b"\0")

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        messages: list[tuple[bytes, ToEngine]] = []
        if block:
            self._poller.poll()
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append((client, decode_to_engine(data)))
            except msgspec.ValidationError as error:
                self._refuse(client, data, error)

    def _refuse(self, client: bytes, data: bytes, error: msgspec.ValidationError) -> None:
        """A message of the wrong form is a bug of its sender; if it was a request, that request is told and nobody else notices."""
        logger.error("a client sent a message of the wrong form: %s", error)
        match msgspec.msgpack.decode(data):
            case ["add", str(request_id), *_]:
                self.send(client, refusal(request_id, InternalError(f"The request is not of the form the engine expects: {error}")))
            case _:
                pass

    def send(self, client: bytes, message: FromEngine) -> None:
        self._socket.send_multipart([client, encode(message)], copy=True)

    def close(self) -> None:
        self._socket.close()
        self._woken.close()
        self._waker.close()
        self._context.term()

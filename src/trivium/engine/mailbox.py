"""The engine's end of the local socket: a ROUTER, so that several clients can share one engine."""

from __future__ import annotations

import logging

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

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        messages: list[tuple[bytes, ToEngine]] = []
        flags = 0 if block else zmq.NOBLOCK
        while True:
            try:
                client, data = self._socket.recv_multipart(flags)
            except zmq.Again:
                return messages
            flags = zmq.NOBLOCK
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
        self._context.term()

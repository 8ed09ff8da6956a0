"""The gRPC server: KServe's service and gRPC's health service, on the server's event loop.

It speaks HTTP/2 itself (`frontends.http2`). grpcio's asyncio server needs a thread and a loop of its own and takes a quarter of a
millisecond of processor time for a call; here a call costs what the same request costs over HTTP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from trivium.config import GrpcConfig, HttpConfig
from trivium.errors import InvalidRequest, TriviumError
from trivium.frontends.auth import ApiKeys
from trivium.frontends.clients import client_of
from trivium.frontends.errors import as_trivium_error
from trivium.frontends.http2.connection import Http2Limits
from trivium.frontends.http2.hpack import Headers, encode
from trivium.frontends.http2.server import Http2Server
from trivium.frontends.http2.stream import Stream, StreamHandler
from trivium.frontends.kserve.grpc_admin import AdminMethod, AdminMethods
from trivium.frontends.kserve.grpc_infer import StreamInfer, UnaryInfer
from trivium.frontends.kserve.grpc_wire import GrpcCall, Messages, OneMessage, Status, WireLimits
from trivium.frontends.kserve.server_state import KserveState
from trivium.protocol.descriptors import Method, service_methods
from trivium.service import InferenceService

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "grpc.health.v1.Health"
CLOSE_TIMEOUT_S: Final = 2.0
"""For calls that are still open when everything else has ended."""
_PUBLIC: Final = frozenset({f"/{SERVICE}/ServerLive".encode(), f"/{SERVICE}/ServerReady".encode(), f"/{HEALTH}/Check".encode()})
"""Answered without a key, as health is over HTTP."""
_NOT_GRPC: Final = encode([(b":status", b"415")])
_MAX_BUFFERED_MESSAGES: Final = 8
"""As many of the largest messages may be on their way at once."""

MakeMessages = Callable[[GrpcCall], Messages]


class GrpcServer:
    """Belongs to one event loop."""

    def __init__(self, service: InferenceService, config: GrpcConfig, http: HttpConfig, state: KserveState) -> None:
        self._methods = _methods(service, state, http)
        self._keys = ApiKeys(http.api_key)
        limits = Http2Limits(preface_timeout_s=http.header_timeout_s, write_timeout_s=http.write_timeout_s)
        self._server = Http2Server(self._accept, limits)
        self._limits = WireLimits(
            max_message_bytes=config.grpc_max_message_bytes,
            max_buffered_bytes=_MAX_BUFFERED_MESSAGES * config.grpc_max_message_bytes,
            message_timeout_s=http.body_timeout_s,
            compression=b"" if config.grpc_compression == "none" else config.grpc_compression.encode(),
        )

    async def start(self, sock: socket.socket) -> None:
        """Serve on a socket that listens."""
        await self._server.start(sock)

    async def close(self) -> None:
        """Take no new calls, and let open ones end for a moment."""
        await self._server.close(CLOSE_TIMEOUT_S)

    def _accept(self, stream: Stream, headers: Headers) -> StreamHandler | None:
        path, is_grpc = _path_of(headers)
        if not is_grpc:
            stream.send_headers(_NOT_GRPC, ends_stream=True)
            return None
        call = GrpcCall(stream, headers, self._limits)
        make = self._methods.get(path)
        if make is None:
            call.fail(Status.UNIMPLEMENTED, "Method not found!")
            return None
        try:
            if path not in _PUBLIC:
                self._keys.check({"headers": headers})
            call.begin(make(call))
        except TriviumError as error:
            call.fail_with(error)
            return None
        return call


class AdminCall(OneMessage):
    """A unary call of any method but inference: answered by a task."""

    def __init__(self, call: GrpcCall, method: Method, answer: AdminMethod) -> None:
        super().__init__()
        self._call = call
        self._method = method
        self._answer = answer
        self._task: asyncio.Task[None] | None = None

    def on_end(self) -> None:
        message = self.message()
        try:
            request = self._method.request.FromString(message)
        except DecodeError:
            raise InvalidRequest("the request is not a valid protobuf message") from None
        self._task = asyncio.create_task(self._run(self._answer(request)), name=f"grpc-{self._method.name}")

    def on_cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, answer: Coroutine[Any, Any, Message]) -> None:
        try:
            message = await answer
        except Exception as error:
            self._call.fail_with(as_trivium_error(error))
            return
        self._call.send(message.SerializeToString())
        self._call.finish()


def _methods(service: InferenceService, state: KserveState, http: HttpConfig) -> dict[bytes, MakeMessages]:
    """By path."""
    admin = AdminMethods(service, state)
    answers = admin.table()
    tensors = service.tensors
    found: dict[bytes, MakeMessages] = {}
    for method in service_methods(SERVICE).values():
        if method.name == "ModelInfer":
            found[method.path.encode()] = lambda call: UnaryInfer(call, tensors, state, client_of({"headers": call.headers}, http))
        elif method.name == "ModelStreamInfer":
            found[method.path.encode()] = lambda call: StreamInfer(call, tensors, state, client_of({"headers": call.headers}, http))
        else:
            found[method.path.encode()] = _admin(method, answers[method.name])
    check = service_methods(HEALTH)["Check"]
    found[check.path.encode()] = _admin(check, admin.check_health)
    return found


def _admin(method: Method, answer: AdminMethod) -> MakeMessages:
    return lambda call: AdminCall(call, method, answer)


def _path_of(headers: Headers) -> tuple[bytes, bool]:
    """The path, and whether it is a gRPC request at all."""
    path = content_type = method = b""
    for name, value in headers:
        if name == b":path":
            path = value
        elif name == b":method":
            method = value
        elif name == b"content-type":
            content_type = value
    return path, method == b"POST" and content_type.startswith(b"application/grpc")

"""The outermost layer: request ids, keys, errors, counting. Pure ASGI, so that a streamed chunk passes through one plain function call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from trivium.config import HttpConfig
from trivium.errors import RequestCancelled
from trivium.frontends.asgi import Handler, Message, Receive, Scope, Send, header
from trivium.frontends.auth import ApiKeys
from trivium.frontends.errors import STATUS_CLIENT_CLOSED, ErrorSender, as_trivium_error, send_error
from trivium.frontends.openai.params import is_request_id, new_request_id
from trivium.metrics import catalogue as c
from trivium.service import InferenceService

PUBLIC_PATHS: Final = frozenset({"/health", "/livez", "/readyz", "/metrics", "/ping", "/v2/health/live", "/v2/health/ready"})
"""Answered without a key, and so is `GET /`. Everything else, routes that don't exist included, asks for one."""
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class Edge:
    """ASGI middleware. `labels` maps an endpoint to the name it has in metrics; `error_sender` tells how errors look on a path, unless the
    route sets `scope["trivium.send_error"]` itself."""

    def __init__(
        self,
        app: Handler,
        config: HttpConfig,
        service: InferenceService,
        labels: dict[int, str],
        error_sender: Callable[[str], ErrorSender] = lambda path: send_error,
    ) -> None:
        self._app = app
        self._service = service
        self._keys = ApiKeys(config.api_key)
        self._root_path = config.root_path.rstrip("/")
        self._registry = service.registry
        self._labels = labels
        self._error_sender = error_sender
        self._in_flight = self._registry.gauge(c.HTTP_IN_FLIGHT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, is_last=self._service.is_draining)
        self._in_flight.inc()
        try:
            path = self._path(scope)
            scope["trivium.send_error"] = self._error_sender(path)
            if not _is_public(scope, path):
                self._keys.check(scope)
            await self._app(scope, exchange.receive, exchange.send)
        except RequestCancelled:
            exchange.status = exchange.status or STATUS_CLIENT_CLOSED
        except asyncio.CancelledError:
            exchange.status = exchange.status or STATUS_CLIENT_CLOSED
            raise
        except Exception as error:
            known = as_trivium_error(error)
            if exchange.status:
                # The status line is out; all that is left is to cut the connection, which uvicorn does when the app raises.
                raise
            await scope["trivium.send_error"](exchange.send, known)
        finally:
            self._in_flight.inc(-1.0)
            self._count(scope, exchange)

    def _path(self, scope: Scope) -> str:
        path: str = scope["path"]
        return path[len(self._root_path) :] if self._root_path and path.startswith(self._root_path + "/") else path

    def _count(self, scope: Scope, exchange: _Exchange) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        handler = self._labels.get(id(scope.get("endpoint")), "other")
        self._registry.counter(c.HTTP_REQUESTS, method, handler, str(exchange.status or 500)).inc()
        self._registry.histogram(c.HTTP_DURATION, method, handler).observe(time.monotonic() - exchange.started_at)
        self._registry.histogram(c.HTTP_REQUEST_SIZE, method, handler).observe(exchange.num_body_bytes)


class _Exchange:
    """One request: its id, and what passed."""

    __slots__ = ("_is_last", "_receive", "_request_id", "_send", "is_body_read", "num_body_bytes", "started_at", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, is_last: bool) -> None:
        """`is_last`: the connection is to be closed after the answer."""
        self._is_last = is_last
        self.started_at = time.monotonic()
        self.status = 0
        self.num_body_bytes = 0
        self.is_body_read = not _has_body(scope)
        self._receive = receive
        self._send = send
        given = (header(scope, b"x-request-id") or b"").decode("latin-1")
        self._request_id = given if is_request_id(given) else new_request_id()
        scope["trivium.request_id"] = self._request_id

    async def receive(self) -> Message:
        message = await self._receive()
        self.num_body_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_body_read = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].append((b"x-request-id", self._request_id.encode()))
            # What is left of a body may never come, and nobody waits for it.
            if self._is_last or not self.is_body_read:
                message["headers"].append((b"connection", b"close"))
        return self._send(message)


def _is_public(scope: Scope, path: str) -> bool:
    return path in PUBLIC_PATHS or (path == "/" and scope["method"] in ("GET", "HEAD"))


def _has_body(scope: Scope) -> bool:
    length = header(scope, b"content-length")
    return header(scope, b"transfer-encoding") is not None or (length is not None and length.strip(b"0") != b"")

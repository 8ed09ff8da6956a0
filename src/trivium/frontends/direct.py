"""Routes answered without ASGI: inside our HTTP server, a request becomes an `Exchange` and its answer one write to the socket.

ASGI costs a task, two dictionaries and a scope for each request, and starlette's router and middleware as much again: more than a small
model takes to compute. The limits, keys and metrics are the same as everywhere else. Where there are CORS rules the ASGI route answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from trivium.config import HttpConfig
from trivium.errors import PayloadTooLarge, TriviumError
from trivium.frontends.asgi import JSON, Headers
from trivium.frontends.auth import ApiKeys
from trivium.frontends.errors import STATUS_CLIENT_CLOSED, HttpError, as_trivium_error
from trivium.frontends.exchange import ExchangeHandler
from trivium.frontends.limits import MAX_LENGTH_DIGITS
from trivium.metrics import catalogue as c
from trivium.service import InferenceService

if TYPE_CHECKING:
    from trivium.frontends.http_protocol import LimitedHttpProtocol

logger = logging.getLogger(__name__)

_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_METHOD: Final = "POST"

ErrorRenderer = Callable[[TriviumError], tuple[int, bytes, Headers]]


class DirectRoute:
    """One route: which paths, who answers, and what it counts."""

    def __init__(
        self,
        service: InferenceService,
        config: HttpConfig,
        handler: ExchangeHandler,
        render_error: ErrorRenderer,
        *,
        prefix: bytes,
        suffix: bytes,
        label: str,
        max_bytes: int,
    ) -> None:
        self.handler = handler
        self.render_error = render_error
        self.max_bytes = max_bytes
        self.body_timeout_s = config.body_timeout_s
        self._service = service
        self._keys = ApiKeys(config.api_key)
        self._prefix = prefix
        self._suffix = suffix
        self._label = label
        self._registry = service.registry
        self._in_flight = service.registry.gauge(c.HTTP_IN_FLIGHT)
        self._duration = service.registry.histogram(c.HTTP_DURATION, _METHOD, label)
        self._request_size = service.registry.histogram(c.HTTP_REQUEST_SIZE, _METHOD, label)
        self._ok = service.registry.counter(c.HTTP_REQUESTS, _METHOD, label, "200")

    def takes(self, method: bytes, url: bytes) -> bool:
        """A path with a query is left to the ASGI route."""
        return method == b"POST" and url.endswith(self._suffix) and url.startswith(self._prefix)

    @property
    def is_draining(self) -> bool:
        return self._service.is_draining

    def check(self, headers: Headers) -> None:
        """Raises `Unauthorized`."""
        self._keys.check({"headers": headers})

    def begin(self) -> None:
        self._in_flight.inc()

    def end(self, status: int, num_bytes: int, duration_s: float) -> None:
        self._in_flight.inc(-1.0)
        counter = self._ok if status == 200 else self._registry.counter(c.HTTP_REQUESTS, _METHOD, self._label, str(status))
        counter.inc()
        self._duration.observe(duration_s)
        self._request_size.observe(num_bytes)


class DirectCycle:
    """An `Exchange`; to uvicorn's protocol, a request and response cycle like its own (`RequestResponseCycle`), without the task.

    uvicorn fills in `body`, clears `more_body`, sets `disconnected`, and each time calls `message_event.set()`.
    """

    __slots__ = (
        "_expects_continue",
        "_is_admitted",
        "_is_begun",
        "_is_started",
        "_leave",
        "_protocol",
        "_route",
        "_started_at",
        "_timer",
        "_url",
        "body",
        "disconnected",
        "headers",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
    )

    def __init__(
        self, protocol: LimitedHttpProtocol, route: DirectRoute, url: bytes, headers: Headers, *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self._protocol = protocol
        self._route = route
        self._url = url
        self.headers = headers
        self.keep_alive = keep_alive
        self.body: Any = bytearray()
        """uvicorn appends to it; once complete it is `bytes`."""
        self.more_body = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._started_at = time.monotonic()
        self._expects_continue = expects_continue
        self._is_admitted = False
        self._is_begun = False
        self._is_started = False
        self._timer: asyncio.TimerHandle | None = None
        self._leave: Callable[[], None] | None = None

    # -- to uvicorn's protocol ----------------------------------------------------------------------------------------------------

    @property
    def message_event(self) -> DirectCycle:
        return self

    def set(self) -> None:
        """Something has arrived."""
        if self.response_complete:
            return
        if self.disconnected:
            self._on_disconnect()
        elif len(self.body) > self._route.max_bytes:
            self._refuse(PayloadTooLarge(f"The request body is larger than {self._route.max_bytes} bytes."))
        elif self._is_admitted:
            self._advance()

    def admit(self) -> None:
        """Its turn has come: the answers before it are out. Further requests on the connection wait meanwhile."""
        self._is_admitted = self._is_begun = True
        self._route.begin()
        try:
            self._check_head()
        except TriviumError as error:
            self._refuse(error)
            return
        if self._expects_continue and self.more_body:
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._advance()

    def start_timer(self) -> None:
        """Called when what had arrived was parsed and the body has not ended."""
        if self._timer is None and self.more_body and not self.response_complete:
            self._timer = self._protocol.loop.call_later(self._route.body_timeout_s, self._on_body_timeout)

    # -- as an exchange -----------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        path = self._url.decode("latin-1")
        return unquote(path) if "%" in path else path

    def on_leave(self, callback: Callable[[], None]) -> None:
        self._leave = callback

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers | None = None) -> None:
        if self.response_complete:
            return
        self.response_started = self.response_complete = True
        if self._timer is not None:
            self._timer.cancel()
        self._finish(status)
        if self.disconnected:
            return
        protocol = self._protocol
        if self._route.is_draining or self.more_body:
            self.keep_alive = False
        parts = [_STATUS_LINES[status]]
        for name, value in protocol.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"content-length: %d\r\n" % len(body))
        if body:
            parts += (b"content-type: ", content_type, b"\r\n")
        for name, value in headers or ():
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        parts.append(body)
        protocol.transport.write(b"".join(parts))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _check_head(self) -> None:
        self._route.check(self.headers)
        for name, value in self.headers:
            if name != b"content-length":
                continue
            if len(value) > MAX_LENGTH_DIGITS:
                raise HttpError(400, "malformed_http", f"Content-Length has more than {MAX_LENGTH_DIGITS} digits.")
            if value.isdigit() and int(value) > self._route.max_bytes:
                raise PayloadTooLarge(f"The request body is larger than {self._route.max_bytes} bytes.")

    def _advance(self) -> None:
        if self.more_body:
            # uvicorn stops reading when a body has more than 64 KiB that nobody took.
            self._protocol.flow.resume_reading()
            return
        if self._is_started:
            return
        self._is_started = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.body = bytes(self.body)
        try:
            self._route.handler(self)
        except Exception as error:
            self._refuse(as_trivium_error(error))

    def _refuse(self, error: TriviumError) -> None:
        status, body, headers = self._route.render_error(error)
        self.respond(status, body, headers=headers)

    def _on_body_timeout(self) -> None:
        self._refuse(HttpError(408, "request_timeout", f"The request body did not arrive within {self._route.body_timeout_s:g} s."))

    def _on_disconnect(self) -> None:
        self.response_complete = True
        if self._timer is not None:
            self._timer.cancel()
        self._finish(STATUS_CLIENT_CLOSED)
        if self._leave is not None:
            self._leave()

    def _finish(self, status: int) -> None:
        if self._is_begun:
            self._is_begun = False
            self._route.end(status, len(self.body), time.monotonic() - self._started_at)

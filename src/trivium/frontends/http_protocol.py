"""uvicorn's HTTP protocol with the limits it lacks: size, number and time of headers, a `Host`, and clients that don't read."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from trivium.config import HttpConfig
from trivium.frontends.asgi import Message, Send
from trivium.frontends.direct import DirectCycle, DirectRoute
from trivium.frontends.errors import HttpError, error_body

KEEP_ALIVE_PROBES: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""A peer that vanished without a word is noticed within two minutes."""

_REASONS: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}

_UPGRADE_TOKENS: Final = (b"upgrade", b"http2-settings")


class _Refused(Exception):
    pass


def limited_protocol(config: HttpConfig, direct: DirectRoute | None = None) -> type[HttpToolsProtocol]:
    """The class to give to uvicorn. `direct` is answered without ASGI."""

    class ConfiguredHttpProtocol(LimitedHttpProtocol):
        limits = config
        direct_route = direct

    return ConfiguredHttpProtocol


class LimitedHttpProtocol(HttpToolsProtocol):
    limits: HttpConfig
    direct_route: DirectRoute | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = True
        self._header_bytes = 0
        self._header_count = 0
        self._exact_bytes = 0
        self._has_host = False
        self._refusal: HttpError | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # -- the connection -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE_PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_timer is None:
                self._start_header_timer()
        self._parse(data)
        if isinstance(self.cycle, DirectCycle):
            self.cycle.start_timer()
        # A header that has not ended yet is seen by no callback.
        if self._in_headers and self._header_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
            self._refusal = _too_large(self.limits)
            self.send_400_response("")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    # -- the parser's callbacks ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._header_count = 0
        self._has_host = False
        self._exact_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self._header_count += 1
        if self._header_count > self.limits.max_header_count:
            self._refuse(HttpError(431, "too_many_headers", f"The request has more than {self.limits.max_header_count} headers."))
        # The rest is what uvicorn's own does, without a second look at each name.
        name = name.lower()
        if name == b"host":
            self._has_host = True
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        version = self.parser.get_http_version()
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refuse(HttpError(400, "malformed_http", "This server is no proxy."))
            # The parser stops here; `_without_upgrade` lets it start over.
            return
        self._in_headers = False
        self._stop_header_timer()
        if not self._has_host and version == "1.1":
            self._refuse(HttpError(400, "missing_host", "The request has no Host header."))
        if self.direct_route is not None and self.direct_route.takes(self.parser.get_method(), self.url):
            self._begin_direct(self.direct_route, version)
            return
        super().on_headers_complete()
        if version == "1.0":
            end_with_connection(self.cycle)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._in_headers = True
        self._header_bytes = 0

    def on_response_complete(self) -> None:
        cycle = self.cycle
        super().on_response_complete()
        if cycle.response_complete and cycle.more_body and not self.transport.is_closing():
            # What is left of the body may never come, and nobody waits for it.
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        error = self._refusal or HttpError(400, "malformed_http", "The request is not valid HTTP.")
        body = error_body(error)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        if not self._is_answering():
            self.transport.write(head % (error.status, _REASONS[error.status], len(body)) + body)
        self.transport.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _begin_direct(self, route: DirectRoute, version: str) -> None:
        """As the end of uvicorn's `on_headers_complete`."""
        before = cast("RequestResponseCycle | None", self.cycle)
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        cycle = DirectCycle(self, route, self.url, self.headers, keep_alive=keep_alive, expects_continue=self.expect_100_continue)
        self.cycle = cast("RequestResponseCycle", cycle)
        if before is None or before.response_complete:
            cycle.admit()
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, cast("Any", self.app)))

    def _start_asgi_task(self, cycle: RequestResponseCycle | DirectCycle, app: Any) -> None:
        if isinstance(cycle, DirectCycle):
            cycle.admit()
        else:
            super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        """As uvicorn's `data_received`, but an offer to upgrade is passed over and its request answered as any other, with its body."""
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("")

    def _without_upgrade(self) -> bytes:
        """The head that was just parsed, for a new parser, without what makes it an offer to upgrade."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(token.strip() for token in value.split(b",") if token.strip().lower() not in _UPGRADE_TOKENS)
            if name not in _UPGRADE_TOKENS:
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _is_answering(self) -> bool:
        """Part of an answer is out: another one would end up in the middle of it."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _count(self, num_bytes: int) -> None:
        self._exact_bytes += num_bytes
        if self._exact_bytes > self.limits.max_header_bytes:
            self._refuse(_too_large(self.limits))

    def _refuse(self, error: HttpError) -> None:
        self._refusal = error
        raise _Refused

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.limits.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if self._header_bytes == 0:
            self.transport.close()
            return
        self._refusal = HttpError(408, "request_timeout", "The request's headers did not arrive in time.")
        self.send_400_response("")


def end_with_connection(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer whose length is not given beforehand ends where its connection does."""
    send: Send = cycle.send  # type: ignore[assignment]
    is_open_ended = False

    async def send_unchunked(message: Message) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            is_open_ended = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if is_open_ended:
                cycle.chunked_encoding = False
        elif is_open_ended:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cast("Any", cycle).send = send_unchunked


def _too_large(limits: HttpConfig) -> HttpError:
    return HttpError(431, "headers_too_large", f"The request line and headers are larger than {limits.max_header_bytes} bytes.")

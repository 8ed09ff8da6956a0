"""One request and its one answer as callbacks: for routes that are answered in less time than a task takes to start.

`direct` makes exchanges inside our HTTP server, without ASGI in between; `run_exchange` makes one under any ASGI server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from trivium.errors import RequestCancelled
from trivium.frontends.asgi import JSON, Headers, Receive, Scope, Send

_LEFT: Final = "The client went away."


class Exchange(Protocol):
    """The request is complete. `respond` is called once, from the event loop."""

    @property
    def path(self) -> str:
        """Decoded, without the query."""
        ...

    @property
    def headers(self) -> Headers:
        """Names in lower case."""
        ...

    @property
    def body(self) -> bytes: ...

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers | None = None) -> None: ...

    def on_leave(self, callback: Callable[[], None]) -> None:
        """`callback` runs if the client goes away before the answer."""
        ...


ExchangeHandler = Callable[[Exchange], None]
"""Starts answering; raises what is wrong with the request."""


class AsgiExchange:
    """An exchange whose answer is awaited."""

    def __init__(self, path: str, headers: Headers, body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self._answer: asyncio.Future[tuple[int, bytes, bytes, Headers]] = asyncio.get_running_loop().create_future()
        self._leave: Callable[[], None] = lambda: None

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers | None = None) -> None:
        if not self._answer.done():
            self._answer.set_result((status, body, content_type, headers or []))

    def on_leave(self, callback: Callable[[], None]) -> None:
        self._leave = callback

    async def finish(self, receive: Receive, send: Send) -> None:
        """Send the answer once it is there. Raises `RequestCancelled` if the client doesn't wait for it."""
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({self._answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not self._answer.done():
                raise RequestCancelled(_LEFT)
        finally:
            leaving.cancel()
            if not self._answer.done():
                self._leave()
        status, body, content_type, headers = self._answer.result()
        head: Headers = [(b"content-length", b"%d" % len(body)), (b"content-type", content_type), *headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def run_exchange(handler: ExchangeHandler, scope: Scope, path: str, body: bytes, receive: Receive, send: Send) -> None:
    """Answer an ASGI request by an exchange handler."""
    exchange = AsgiExchange(path, scope["headers"], body)
    handler(exchange)
    await exchange.finish(receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""The few ASGI types and helpers that the frontends share. Handlers are plain ASGI callables: nothing wraps `send` between a token and its socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
HTML = b"text/html; charset=utf-8"

encode_json = msgspec.json.Encoder().encode


async def send_bytes(send: Send, body: bytes, *, status: int = 200, content_type: bytes = JSON, headers: Headers | None = None) -> None:
    """A whole answer."""
    head: Headers = [(b"content-length", str(len(body)).encode()), *(headers or [])]
    if body:
        head.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_json(send: Send, value: Any, *, status: int = 200) -> None:
    await send_bytes(send, encode_json(value), status=status)


def header(scope: Scope, name: bytes) -> bytes | None:
    """First value of a header; `name` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None

"""Server-sent events and the watch for clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trivium.errors import RequestCancelled, TriviumError
from trivium.frontends.asgi import Receive, Send

DONE: Final = b"data: [DONE]\n\n"

_STREAM_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")],
}


async def start_stream(send: Send) -> None:
    await send(dict(_STREAM_START))


class DisconnectWatch:
    """While entered, calls `on_leave` when the client closes its connection, whether or not anything is being sent."""

    def __init__(self, receive: Receive, on_leave: Callable[[TriviumError], None]) -> None:
        self._receive = receive
        self._on_leave = on_leave
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> DisconnectWatch:
        self._task = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_leave(RequestCancelled("The client went away."))

"""`/metrics` on a port of its own, as Triton serves it: a second HTTP server in the same event loop, with nothing else on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn

from trivium.config import HttpConfig
from trivium.errors import TriviumError
from trivium.frontends.asgi import Receive, Scope, Send
from trivium.frontends.errors import HttpError, as_trivium_error, send_error
from trivium.frontends.http_protocol import limited_protocol
from trivium.frontends.system import SystemRoutes
from trivium.service import InferenceService


class MetricsServer(uvicorn.Server):
    """Runs from `start` to `close`."""

    def __init__(self, service: InferenceService, config: HttpConfig) -> None:
        super().__init__(
            uvicorn.Config(
                _MetricsApp(service),
                http=limited_protocol(config),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=config.uvicorn_log_level,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(config.keep_alive_timeout_s) or 1,
                timeout_graceful_shutdown=1,
            )
        )
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, sock: socket.socket) -> None:
        self._task = asyncio.create_task(self.serve(sockets=[sock]), name="metrics-port")

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    # -- uvicorn's hooks ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the main server's."""
        yield

    async def main_loop(self) -> None:
        await self._stop.wait()


class _MetricsApp:
    def __init__(self, service: InferenceService) -> None:
        self._system = SystemRoutes(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] != "/metrics":
                raise HttpError(404, "not_found", "There is no such route.")
            if scope["method"] != "GET":
                raise HttpError(405, "method_not_allowed", "This route does not answer to this method.")
            await self._system.metrics(scope, receive, send)
        except TriviumError as error:
            await send_error(send, as_trivium_error(error))

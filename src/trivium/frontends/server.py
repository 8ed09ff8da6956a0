"""Running the application: a socket bound before anything is loaded, and an end that loses no accepted request.

SIGTERM or SIGINT drains: readiness goes false, after `drain_delay_s` new requests are refused, those accepted finish within
`drain_timeout_s`, and the exit code is 0. A second signal stops at once, with another code if that cost a request its answer: 130 for SIGINT, else 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import time
from collections.abc import Generator
from typing import Final

import uvicorn
from starlette.applications import Starlette

from trivium.config import HttpConfig
from trivium.errors import ConfigError
from trivium.frontends.http_protocol import limited_protocol
from trivium.service import InferenceService

logger = logging.getLogger(__name__)

BACKLOG: Final = 2048
EXIT_OK: Final = 0
EXIT_FORCED: Final = 1
EXIT_INTERRUPTED: Final = 130
FLUSH_TIMEOUT_S: Final = 2
"""For answers that are complete to reach their clients."""
PROBES: Final = frozenset({"/health", "/livez", "/readyz", "/metrics", "/ping"})
_DATE_INTERVAL_S: Final = 1.0


def bind(config: HttpConfig) -> socket.socket:
    """A listening socket, taken before a model is loaded. Raises `ConfigError` when it can't be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            # Only a listening socket keeps others from binding the same port.
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(f"Can't listen on {config.host}, port {config.port}: {error.strerror or error}.", param="port") from None
    sock.set_inheritable(False)
    return sock


def port_of(sock: socket.socket) -> int:
    return sock.getsockname()[1]


class Server(uvicorn.Server):
    """uvicorn's server with our signals and our drain."""

    def __init__(self, app: Starlette, config: HttpConfig) -> None:
        super().__init__(_uvicorn_config(app, config))
        service = app.state.service
        assert isinstance(service, InferenceService)
        self._service = service
        self._http = config
        self._stop = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._drain_ends_at = 0.0
        self.exit_code = EXIT_OK

    def begin_drain(self, number: int = signal.SIGTERM) -> None:
        """What the first signal does. Calling it again stops at once."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(), name="drain")
            return
        logger.warning("stopping at once: %s lost", _requests(self._service.num_running))
        if self._service.num_running:
            self.exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_FORCED
        self.force_exit = True
        self._draining.cancel()
        self._stop.set()

    async def _drain(self) -> None:
        if self._service.num_running:
            limit_s = self._http.drain_delay_s + self._http.drain_timeout_s
            waiting_for = _requests(self._service.num_running)
            logger.info("draining: waiting up to %g s for %s; Ctrl-C or SIGTERM again stops at once", limit_s, waiting_for)
        else:
            logger.info("draining: no request in progress")
        self._service.begin_drain()
        try:
            await asyncio.sleep(self._http.drain_delay_s)
            self._drain_ends_at = time.monotonic() + self._http.drain_timeout_s
            if not await self._service.drain(self._http.drain_timeout_s):
                logger.warning("drain limit of %g s exceeded: the remaining requests failed", self._http.drain_timeout_s)
        finally:
            self._stop.set()

    # -- uvicorn's hooks ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Unlike uvicorn's, it doesn't raise the signal again at the end: a drained server ends with exit code 0."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.begin_drain, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _DATE_INTERVAL_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Answers that are complete may still be on their way to slow clients, for as long as the drain may take.
        self.config.timeout_graceful_shutdown = max(FLUSH_TIMEOUT_S, math.ceil(self._drain_ends_at - time.monotonic()))
        if self.force_exit:
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        await super().shutdown(sockets)


async def serve(app: Starlette, config: HttpConfig, *, sock: socket.socket | None = None) -> int:
    """Serve until a signal ends it. Returns the process's exit code. Models and engines are the caller's to close afterwards."""
    server = Server(app, config)
    await server.serve(sockets=[sock if sock is not None else bind(config)])
    return server.exit_code


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _demote_probes(record: logging.LogRecord) -> bool:
    """Access lines of probes and scrapes are for debugging: every few seconds one of them would drown the rest."""
    path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else None
    if not isinstance(path, str) or path.partition("?")[0] not in PROBES:
        return True
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger("trivium").isEnabledFor(logging.DEBUG)


def _uvicorn_config(app: Starlette, config: HttpConfig) -> uvicorn.Config:
    # The function is the same object each time, so that it is added once.
    logging.getLogger("uvicorn.access").addFilter(_demote_probes)
    return uvicorn.Config(
        app,
        http=limited_protocol(config, app.state.direct),
        ws="none",
        lifespan="off",
        loop="auto",
        root_path=config.root_path,
        log_config=None,
        log_level=config.uvicorn_log_level,
        access_log=config.uvicorn_log_level in ("info", "debug", "trace"),
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(config.keep_alive_timeout_s) or 1,
        timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
        backlog=BACKLOG,
    )

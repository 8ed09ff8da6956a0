"""A listening socket and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from trivium.frontends.http2.connection import Accept, Http2Connection, Http2Limits


class Http2Server:
    """Belongs to one event loop."""

    def __init__(self, accept: Accept, limits: Http2Limits) -> None:
        self._accept = accept
        self._limits = limits
        self._connections: dict[Http2Connection, None] = {}
        self._idle = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Serve on a socket that listens."""
        self._server = await asyncio.get_running_loop().create_server(self._connect, sock=sock)

    async def close(self, timeout_s: float) -> None:
        """Take no new requests, give those that are open so long to end, and close what is left."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        for connection in list(self._connections):
            connection.abort()

    def _connect(self) -> Http2Connection:
        connection = Http2Connection(self._accept, self._limits, self._on_lost)
        self._connections[connection] = None
        self._idle.clear()
        return connection

    def _on_lost(self, connection: Http2Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._idle.set()

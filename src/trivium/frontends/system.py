"""Health, version and metrics. What is not well is raised, and answered with 503 like any `NotReady`."""

from __future__ import annotations

from trivium import __version__
from trivium.frontends.asgi import TEXT, Receive, Scope, Send, send_bytes, send_json
from trivium.metrics.exposition import CONTENT_TYPE
from trivium.service import InferenceService


class SystemRoutes:
    """ASGI endpoints of one service."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 with an empty body if models are loaded and their engines run: what vLLM and TGI mean by it."""
        self._service.check_health()
        await send_bytes(send, b"")

    async def livez(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The process answers."""
        await send_bytes(send, b"ok\n", content_type=TEXT)

    async def readyz(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every model is loaded and every engine's own loop answered a probe."""
        await self._service.check_ready()
        await send_bytes(send, b"ok\n", content_type=TEXT)

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, {"version": __version__})

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, await self._service.render_metrics(), content_type=CONTENT_TYPE.encode())

"""`GET /info`, `/ping` and `/`."""

from __future__ import annotations

from trivium import __version__
from trivium.config import HttpConfig
from trivium.errors import NotReady
from trivium.frontends.asgi import Receive, Scope, Send, header, send_bytes, send_json
from trivium.frontends.tgi.errors import unhealthy
from trivium.frontends.tgi.validation import RequestLimits
from trivium.service import InferenceService


class InfoRoutes:
    """ASGI endpoints of one service."""

    def __init__(self, service: InferenceService, config: HttpConfig) -> None:
        self._service = service
        self._config = config
        self._docs = f"{config.root_path.rstrip('/')}/docs".encode()

    async def info(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What TGI tells of itself; of several models, the first."""
        model = self._service.model("")
        limits = RequestLimits.of(self._config.tgi, model)
        shape = {
            "model_id": model.root,
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": self._service.max_concurrent(model.name),
            "max_best_of": limits.max_best_of,
            "max_stop_sequences": limits.max_stop_sequences,
            "max_top_n_tokens": limits.max_top_n_tokens,
            "max_input_tokens": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "validation_workers": model.num_tokenizer_threads,
            "max_client_batch_size": self._config.tgi.max_client_batch_size,
            "router": "trivium",
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }
        await send_json(send, shape)

    async def ping(self, scope: Scope, receive: Receive, send: Send) -> None:
        """200 with an empty body if models are loaded and their engines run."""
        try:
            self._service.check_health()
        except NotReady:
            raise unhealthy() from None
        await send_bytes(send, b"")

    async def root(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`ping` to programs; to a browser, the way to the documentation."""
        if b"text/html" in (header(scope, b"accept") or b""):
            await send_bytes(send, b"", status=307, headers=[(b"location", self._docs), (b"vary", b"accept")])
        else:
            await self.ping(scope, receive, send)

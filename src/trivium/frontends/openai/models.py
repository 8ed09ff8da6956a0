"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from trivium.frontends.asgi import Receive, Scope, Send, send_json
from trivium.service import InferenceService, ModelInfo


class ModelsRoute:
    """An ASGI endpoint."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"].get("model")
        if name is None:
            await send_json(send, {"object": "list", "data": [_shape(info) for info in self._service.models()]})
        else:
            await send_json(send, _shape(self._service.model(name)))


def _shape(info: ModelInfo) -> dict[str, Any]:
    shape = {"id": info.name, "object": "model", "created": info.created, "owned_by": "trivium"}
    return {**shape, "root": info.root, "parent": None, "max_model_len": info.max_model_len, "permission": []}

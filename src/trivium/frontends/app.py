"""`create_app`: every route of the server, as one Starlette application."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from trivium.config import HttpConfig
from trivium.frontends.asgi import Handler, Receive, Scope, Send
from trivium.frontends.docs import DocsRoutes
from trivium.frontends.edge import Edge
from trivium.frontends.errors import ErrorSender, HttpError, send_error
from trivium.frontends.kserve.errors import send_kserve_error
from trivium.frontends.kserve.model_paths import ModelPaths, kserve_route
from trivium.frontends.kserve.rest import direct_infer, is_kserve_path, kserve_table
from trivium.frontends.kserve.server_state import KserveState
from trivium.frontends.openai.models import ModelsRoute
from trivium.frontends.openai.routes import chat_route, completions_route
from trivium.frontends.openai.tokenization import DetokenizeRoute, TokenizeRoute
from trivium.frontends.system import SystemRoutes
from trivium.frontends.tgi.errors import send_tgi_error
from trivium.frontends.tgi.routes import TGI_PATHS, tgi_table
from trivium.service import InferenceService


class Endpoint:
    """Starlette takes an object that isn't a function as an ASGI application and leaves it alone."""

    __slots__ = ("_handler",)

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


def create_app(service: InferenceService, config: HttpConfig | None = None, *, state: KserveState | None = None) -> Starlette:
    """The application; `app.state.service` is the service. `state` is what KServe's routes share with its gRPC server."""
    config = config or HttpConfig()
    state = state or KserveState()
    paths = ModelPaths(service.tensors.repository)
    routes = [kserve_route(path, Endpoint(handler), method, paths) for method, path, handler in _table(service, config, state)]
    labels = {id(route.endpoint): route.path_format for route in routes}
    middleware = [Middleware(Edge, config, service, labels, _error_sender)]
    if config.allowed_origins:
        middleware.insert(0, _cors(config.allowed_origins))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _raise_http_error})
    # A redirect would be built from the Host header, which anybody can forge.
    app.router.redirect_slashes = False
    app.state.service = service
    # CORS headers are the middleware's to add.
    app.state.direct = None if config.allowed_origins else direct_infer(service, config, state)
    return app


def _table(service: InferenceService, config: HttpConfig, state: KserveState) -> list[tuple[str, str, Handler]]:
    system = SystemRoutes(service)
    docs = DocsRoutes(config.root_path)
    chat, completions = chat_route(service, config), completions_route(service, config)
    return [
        ("POST", "/v1/completions", completions),
        ("POST", "/v1/chat/completions", chat),
        ("GET", "/v1/models", ModelsRoute(service)),
        ("GET", "/v1/models/{model:path}", ModelsRoute(service)),
        *tgi_table(service, config, chat=chat, completions=completions, tokenize=TokenizeRoute(service, config)),
        ("POST", "/detokenize", DetokenizeRoute(service, config)),
        ("GET", "/health", system.health),
        ("GET", "/livez", system.livez),
        ("GET", "/readyz", system.readyz),
        ("GET", "/version", system.version),
        ("GET", "/metrics", system.metrics),
        *kserve_table(service, config, state),
        ("GET", "/docs", docs.page),
        ("GET", "/openapi.json", docs.document),
    ]


def _error_sender(path: str) -> ErrorSender:
    if is_kserve_path(path):
        return send_kserve_error
    return send_tgi_error if path in TGI_PATHS else send_error


def _cors(origins: tuple[str, ...]) -> Middleware:
    allowed: dict[str, Any] = {"allow_origins": list(origins), "allow_methods": ["GET", "POST"], "allow_headers": ["*"], "max_age": 600}
    return Middleware(CORSMiddleware, **allowed, expose_headers=["x-request-id", "retry-after"])


def _raise_http_error(_: Any, error: Exception) -> Any:
    """Starlette's own errors (no such route, wrong method) in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise HttpError(405, "method_not_allowed", "This route does not answer to this method.") from None
    raise HttpError(error.status_code, "not_found" if error.status_code == 404 else "http_error", "There is no such route.") from None

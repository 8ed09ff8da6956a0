"""`create_app`: every route of the server, as one Starlette application."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from trivium.config import HttpConfig
from trivium.frontends.asgi import Handler, Receive, Scope, Send
from trivium.frontends.docs import DocsRoutes
from trivium.frontends.edge import Edge
from trivium.frontends.errors import HttpError
from trivium.frontends.openai.models import ModelsRoute
from trivium.frontends.openai.routes import chat_route, completions_route
from trivium.frontends.openai.tokenization import DetokenizeRoute, TokenizeRoute
from trivium.frontends.system import SystemRoutes
from trivium.service import InferenceService


class Endpoint:
    """Starlette takes an object that isn't a function as an ASGI application and leaves it alone."""

    __slots__ = ("_handler",)

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


def create_app(service: InferenceService, config: HttpConfig | None = None) -> Starlette:
    """The application; `app.state.service` is the service."""
    config = config or HttpConfig()
    routes = [Route(path, Endpoint(handler), methods=[method]) for method, path, handler in _table(service, config)]
    labels = {id(route.endpoint): route.path_format for route in routes}
    middleware = [Middleware(Edge, config, service, labels)]
    if config.allowed_origins:
        middleware.insert(0, _cors(config.allowed_origins))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _raise_http_error})
    # A redirect would be built from the Host header, which anybody can forge.
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _table(service: InferenceService, config: HttpConfig) -> list[tuple[str, str, Handler]]:
    system = SystemRoutes(service)
    docs = DocsRoutes(config.root_path)
    return [
        ("POST", "/v1/completions", completions_route(service, config)),
        ("POST", "/v1/chat/completions", chat_route(service, config)),
        ("GET", "/v1/models", ModelsRoute(service)),
        ("GET", "/v1/models/{model:path}", ModelsRoute(service)),
        ("POST", "/tokenize", TokenizeRoute(service, config)),
        ("POST", "/detokenize", DetokenizeRoute(service, config)),
        ("GET", "/health", system.health),
        ("GET", "/livez", system.livez),
        ("GET", "/readyz", system.readyz),
        ("GET", "/version", system.version),
        ("GET", "/metrics", system.metrics),
        ("GET", "/docs", docs.page),
        ("GET", "/openapi.json", docs.document),
    ]


def _cors(origins: tuple[str, ...]) -> Middleware:
    allowed: dict[str, Any] = {"allow_origins": list(origins), "allow_methods": ["GET", "POST"], "allow_headers": ["*"], "max_age": 600}
    return Middleware(CORSMiddleware, **allowed, expose_headers=["x-request-id", "retry-after"])


def _raise_http_error(_: Any, error: Exception) -> Any:
    """Starlette's own errors (no such route, wrong method) in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise HttpError(405, "method_not_allowed", "This route does not answer to this method.") from None
    raise HttpError(error.status_code, "not_found" if error.status_code == 404 else "http_error", "There is no such route.") from None

"""TGI's rows of the route table."""

from __future__ import annotations

from typing import Final

from trivium.config import HttpConfig
from trivium.frontends.asgi import Handler
from trivium.frontends.tgi.generate import CompatRoute, GenerateRoute, Generator, Kind
from trivium.frontends.tgi.info import InfoRoutes
from trivium.frontends.tgi.platforms import InvocationsRoute, VertexRoute
from trivium.frontends.tgi.tokenization import ChatTokenizeRoute, TokenizeRoute
from trivium.service import InferenceService

TGI_PATHS: Final = frozenset({"/", "/generate", "/generate_stream", "/info", "/ping", "/chat_tokenize", "/invocations", "/vertex"})
"""Those whose errors have TGI's shape. `/tokenize` decides by its body."""


def tgi_table(
    service: InferenceService, config: HttpConfig, *, chat: Handler, completions: Handler, tokenize: Handler
) -> list[tuple[str, str, Handler]]:
    """Method, path, handler. `chat`, `completions` and `tokenize` answer what on shared routes is not TGI's."""
    generator = Generator(service, config)
    info = InfoRoutes(service, config)
    return [
        ("POST", "/generate", GenerateRoute(generator, Kind())),
        ("POST", "/generate_stream", GenerateRoute(generator, Kind(is_stream=True))),
        ("POST", "/", CompatRoute(generator)),
        ("GET", "/", info.root),
        ("GET", "/info", info.info),
        ("GET", "/ping", info.ping),
        ("POST", "/tokenize", TokenizeRoute(generator, tokenize)),
        ("POST", "/chat_tokenize", ChatTokenizeRoute(generator)),
        ("POST", "/invocations", InvocationsRoute(generator, chat=chat, completions=completions)),
        ("POST", "/vertex", VertexRoute(generator)),
    ]

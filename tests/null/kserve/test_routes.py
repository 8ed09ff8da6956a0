"""The description of the API and the routes that there are."""

from __future__ import annotations

from trivium.frontends.app import create_app
from trivium.frontends.kserve import openapi
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService


async def test_every_route_is_described_and_every_description_has_a_route() -> None:
    app = create_app(InferenceService(ModelManager()))
    routes = {(route.path, method.lower()) for route in app.routes for method in route.methods - {"HEAD"} if route.path.startswith("/v2")}  # type: ignore[attr-defined]
    assert routes == {(path, method) for path, operations in openapi.paths().items() for method in operations if method != "parameters"}

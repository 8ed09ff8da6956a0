"""KServe's and Triton's HTTP routes: health, metadata, configuration, statistics. Inference is in `infer_route` and `generate`."""

from __future__ import annotations

from trivium.config import HttpConfig
from trivium.frontends.asgi import Handler, Receive, Scope, Send, send_bytes, send_json
from trivium.frontends.direct import DirectRoute
from trivium.frontends.errors import HttpError
from trivium.frontends.kserve.control import ControlRoutes
from trivium.frontends.kserve.errors import rendered, send_kserve_error
from trivium.frontends.kserve.generate import GenerateRoute
from trivium.frontends.kserve.infer_request import InferParser
from trivium.frontends.kserve.infer_route import InferRoute
from trivium.frontends.kserve.metadata import model_metadata, server_metadata, statistics_document
from trivium.frontends.kserve.model_paths import MODELS, ONE_MODEL, ONE_VERSION, ModelPaths
from trivium.frontends.kserve.server_state import KserveState
from trivium.protocol.config_json import config_to_json
from trivium.service import InferenceService


def is_kserve_path(path: str) -> bool:
    """Whether errors look like Triton's there."""
    return path == "/v2" or path.startswith("/v2/")


def kserve_table(service: InferenceService, config: HttpConfig, state: KserveState) -> list[tuple[str, str, Handler]]:
    """Method, path and endpoint of each route."""
    routes = _Routes(service)
    control = ControlRoutes(service, config, state)
    infer = infer_route(service, config, state)
    generate = GenerateRoute(service.tensors, config, state.traces, is_stream=False)
    stream = GenerateRoute(service.tensors, config, state.traces, is_stream=True)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/v2", routes.server),
        ("GET", "/v2/health/live", routes.live),
        ("GET", "/v2/health/ready", routes.ready),
        ("GET", "/v2/models/stats", routes.all_statistics),
        *control.table(),
    ]
    for prefix in (ONE_MODEL, ONE_VERSION):
        table += [
            ("GET", prefix, routes.model),
            ("GET", f"{prefix}/ready", routes.model_ready),
            ("GET", f"{prefix}/config", routes.model_config),
            ("GET", f"{prefix}/stats", routes.statistics),
            ("POST", f"{prefix}/infer", infer),
            ("POST", f"{prefix}/generate", generate),
            ("POST", f"{prefix}/generate_stream", stream),
        ]
    return table


def infer_route(service: InferenceService, config: HttpConfig, state: KserveState) -> InferRoute:
    parser = InferParser(service.tensors, state.regions, max_json_bytes=config.max_body_bytes)
    paths = ModelPaths(service.tensors.repository)
    return InferRoute(service.tensors, parser, state.traces, paths, config)


def direct_infer(service: InferenceService, config: HttpConfig, state: KserveState) -> DirectRoute:
    """The infer route, for our own HTTP server."""
    handler = infer_route(service, config, state).start
    label = f"{ONE_MODEL}/infer"
    return DirectRoute(service, config, handler, rendered, prefix=MODELS.encode(), suffix=b"/infer", label=label, max_bytes=config.max_tensor_bytes)


def named(scope: Scope) -> tuple[str, str]:
    """Model and version (empty: any) in the path."""
    parameters = scope["path_params"]
    return parameters["model"], parameters.get("version", "")


class _Routes:
    """ASGI endpoints."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._tensors = service.tensors

    async def server(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, server_metadata())

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, b"")

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Triton says 400 when it isn't, with an empty body."""
        await send_bytes(send, b"", status=200 if await self._service.is_ready() else 400)

    async def model(self, scope: Scope, receive: Receive, send: Send) -> None:
        model, version = named(scope)
        signature = self._tensors.signature(model, version)
        versions = [signature.version] if version else self._tensors.repository.versions(model)
        await send_json(send, model_metadata(signature, versions))

    async def model_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tensors.repository.is_ready(*named(scope)):
            await send_bytes(send, b"")
        else:
            await send_kserve_error(send, HttpError(400, "not_ready", "Model version not ready"))

    async def model_config(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, config_to_json(self._tensors.repository.config(*named(scope))).encode())

    async def statistics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, statistics_document(self._tensors.repository.statistics(*named(scope))))

    async def all_statistics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, statistics_document(self._tensors.repository.statistics()))

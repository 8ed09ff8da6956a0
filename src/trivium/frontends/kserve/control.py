"""Triton's control routes: repository, shared memory, trace settings, logging."""

from __future__ import annotations

import binascii
from typing import Any, Final

import msgspec

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, ModelNotFound, UnsupportedFeature
from trivium.frontends.asgi import Handler, Receive, Scope, Send, send_bytes, send_json
from trivium.frontends.kserve.model_paths import ONE_MODEL, TRACE
from trivium.frontends.kserve.server_state import KserveState
from trivium.frontends.limits import parse_json, read_body
from trivium.service import InferenceService

CUDA_REFUSAL: Final = "CUDA shared memory is not supported by this server"
FILE_PREFIX: Final = "file:"


class IndexBody(msgspec.Struct):
    ready: bool = False


class ParametersBody(msgspec.Struct):
    parameters: dict[str, Any] = {}


class RegisterBody(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


_INDEX: Final = msgspec.json.Decoder(IndexBody)
_PARAMETERS: Final = msgspec.json.Decoder(ParametersBody)
_REGISTER: Final = msgspec.json.Decoder(RegisterBody)
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


class ControlRoutes:
    """ASGI endpoints."""

    def __init__(self, service: InferenceService, config: HttpConfig, state: KserveState) -> None:
        self._repository = service.tensors.repository
        self._config = config
        self._state = state

    def table(self) -> list[tuple[str, str, Handler]]:
        shm, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/v2/repository/index", self.index),
            ("POST", "/v2/repository/{repository}/index", self.index),
            ("POST", "/v2/repository/models/{model}/load", self.load),
            ("POST", "/v2/repository/models/{model}/unload", self.unload),
            ("POST", "/v2/repository/{repository}/models/{model}/load", _refuse_repository),
            ("POST", "/v2/repository/{repository}/models/{model}/unload", _refuse_repository),
            ("GET", f"{shm}/status", self.shared_memory_status),
            ("GET", f"{shm}/region/{{region}}/status", self.shared_memory_status),
            ("POST", f"{shm}/region/{{region}}/register", self.register),
            ("POST", f"{shm}/region/{{region}}/unregister", self.unregister),
            ("POST", f"{shm}/unregister", self.unregister),
            ("GET", f"{cuda}/status", self.cuda_status),
            ("GET", f"{cuda}/region/{{region}}/status", self.cuda_status),
            ("POST", f"{cuda}/region/{{region}}/register", _refuse_cuda),
            ("POST", f"{cuda}/region/{{region}}/unregister", _do_nothing),
            ("POST", f"{cuda}/unregister", _do_nothing),
            ("GET", "/v2/logging", self.logging),
            ("POST", "/v2/logging", self.logging),
        ]
        for path in ("/v2" + TRACE, ONE_MODEL + TRACE):
            table += [("GET", path, self.trace), ("POST", path, self.trace)]
        return table

    # -- repository ---------------------------------------------------------------------------------------------------------------

    async def index(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(scope, receive)
        ready_only = parse_json(body, _INDEX).ready if body else False
        lines = [
            {name: value for name in ("name", "version", "state", "reason") if (value := str(getattr(entry, name)))}
            for entry in self._repository.index(ready_only=ready_only)
        ]
        await send_json(send, lines)

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(scope, receive, max_bytes=self._config.max_tensor_bytes)
        parameters = parse_json(body, _PARAMETERS).parameters if body else {}
        config_json: str | None = None
        files: dict[str, bytes] = {}
        for name, value in parameters.items():
            if name.startswith(FILE_PREFIX) and isinstance(value, str):
                files[name] = _from_base64(name, value)
            elif name == "config" and isinstance(value, str):
                config_json = value
            else:
                raise InvalidRequest(f"unexpected load parameter '{name[:64]}': 'config' and 'file:<version>/<name>' are text")
        await self._repository.load(scope["path_params"]["model"], config_json=config_json, files=files)
        await send_bytes(send, b"")

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._read(scope, receive)
        parameters = parse_json(body, _PARAMETERS).parameters if body else {}
        unload_dependents = parameters.pop("unload_dependents", False)
        if parameters or not isinstance(unload_dependents, bool):
            raise InvalidRequest("the only unload parameter is 'unload_dependents', true or false")
        await self._repository.unload(scope["path_params"]["model"], unload_dependents=unload_dependents)
        await send_bytes(send, b"")

    # -- shared memory ------------------------------------------------------------------------------------------------------------

    async def shared_memory_status(self, scope: Scope, receive: Receive, send: Send) -> None:
        regions = self._state.regions.status(scope["path_params"].get("region", ""))
        await send_json(send, [{"name": found.name, "key": found.key, "offset": found.offset, "byte_size": found.byte_size} for found in regions])

    async def register(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = parse_json(await self._read(scope, receive), _REGISTER)
        self._state.regions.register(scope["path_params"]["region"], body.key, body.offset, body.byte_size)
        await send_bytes(send, b"")

    async def unregister(self, scope: Scope, receive: Receive, send: Send) -> None:
        region = scope["path_params"].get("region", "")
        if region:
            self._state.regions.unregister(region)
        else:
            self._state.regions.unregister_all()
        await send_bytes(send, b"")

    async def cuda_status(self, scope: Scope, receive: Receive, send: Send) -> None:
        region = scope["path_params"].get("region", "")
        if region:
            raise ModelNotFound(f"Unable to find cuda shared memory region: '{region}'")
        await send_json(send, [])

    # -- trace and log ------------------------------------------------------------------------------------------------------------

    async def trace(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = scope["path_params"].get("model", "")
        if model:
            self._repository.versions(model)
        if scope["method"] == "POST":
            self._state.trace.update(await self._settings(scope, receive), model)
        await send_json(send, self._state.trace.values(model))

    async def logging(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            self._state.log.update(await self._settings(scope, receive))
        await send_json(send, self._state.log.values())

    async def _settings(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        body = await self._read(scope, receive)
        return parse_json(body, _OBJECT) if body else {}

    async def _read(self, scope: Scope, receive: Receive, max_bytes: int | None = None) -> bytes:
        return await read_body(scope, receive, max_bytes=max_bytes or self._config.max_body_bytes, timeout_s=self._config.body_timeout_s)


async def _refuse_repository(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnsupportedFeature("'repository_name' specification is not supported")


async def _refuse_cuda(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnsupportedFeature(CUDA_REFUSAL)


async def _do_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await send_bytes(send, b"")


def _from_base64(name: str, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise InvalidRequest(f"load parameter '{name[:64]}' is not base64") from None

"""Every method of `GRPCInferenceService` but inference, and `grpc.health.v1.Health`: messages in, messages out, on the server's event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from trivium.errors import InvalidRequest, ModelNotFound, UnsupportedFeature
from trivium.frontends.kserve.control import CUDA_REFUSAL, FILE_PREFIX
from trivium.frontends.kserve.metadata import model_metadata, server_metadata, statistics_document
from trivium.frontends.kserve.server_state import KserveState
from trivium.protocol import health, kserve
from trivium.service import InferenceService

AdminMethod = Callable[[Any], Coroutine[Any, Any, Message]]


class AdminMethods:
    """Each takes the method's request and raises `TriviumError`s."""

    def __init__(self, service: InferenceService, state: KserveState) -> None:
        self._service = service
        self._tensors = service.tensors
        self._state = state

    def table(self) -> Mapping[str, AdminMethod]:
        """By the method's name."""
        return {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": self._shared_memory_status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
            "TraceSetting": self._trace,
            "LogSettings": self._log,
        }

    async def check_health(self, request: health.HealthCheckRequest) -> health.HealthCheckResponse:
        """The empty service is the server as a whole, as is ours by name. Raises `ModelNotFound` for others."""
        if request.service not in ("", "inference.GRPCInferenceService"):
            raise ModelNotFound("unknown service")
        status = health.HealthCheckResponse.SERVING if await self._service.is_ready() else health.HealthCheckResponse.NOT_SERVING
        return health.HealthCheckResponse(status=status)

    # -- what is there ------------------------------------------------------------------------------------------------------------

    async def _server_live(self, request: kserve.ServerLiveRequest) -> Message:
        return kserve.ServerLiveResponse(live=True)

    async def _server_ready(self, request: kserve.ServerReadyRequest) -> Message:
        return kserve.ServerReadyResponse(ready=await self._service.is_ready())

    async def _model_ready(self, request: kserve.ModelReadyRequest) -> Message:
        return kserve.ModelReadyResponse(ready=self._tensors.repository.is_ready(request.name, request.version))

    async def _server_metadata(self, request: kserve.ServerMetadataRequest) -> Message:
        return kserve.ServerMetadataResponse(**server_metadata())

    async def _model_metadata(self, request: kserve.ModelMetadataRequest) -> Message:
        signature = self._tensors.signature(request.name, request.version)
        versions = [signature.version] if request.version else self._tensors.repository.versions(request.name)
        return ParseDict(model_metadata(signature, versions), kserve.ModelMetadataResponse())

    async def _model_config(self, request: kserve.ModelConfigRequest) -> Message:
        return kserve.ModelConfigResponse(config=self._tensors.repository.config(request.name, request.version))

    async def _model_statistics(self, request: kserve.ModelStatisticsRequest) -> Message:
        found = self._tensors.repository.statistics(request.name, request.version)
        return ParseDict(statistics_document(found), kserve.ModelStatisticsResponse())

    # -- repository ---------------------------------------------------------------------------------------------------------------

    async def _index(self, request: kserve.RepositoryIndexRequest) -> Message:
        _refuse_repository(request.repository_name)
        response = kserve.RepositoryIndexResponse()
        for entry in self._tensors.repository.index(ready_only=request.ready):
            response.models.add(name=entry.name, version=str(entry.version), state=str(entry.state), reason=entry.reason)
        return response

    async def _load(self, request: kserve.RepositoryModelLoadRequest) -> Message:
        _refuse_repository(request.repository_name)
        config_json: str | None = None
        files: dict[str, bytes] = {}
        for name, parameter in request.parameters.items():
            choice = parameter.WhichOneof("parameter_choice")
            if name == "config" and choice == "string_param":
                config_json = parameter.string_param
            elif name.startswith(FILE_PREFIX) and choice == "bytes_param":
                files[name] = parameter.bytes_param
            else:
                raise InvalidRequest(f"unexpected load parameter '{name[:64]}': 'config' is text, 'file:<version>/<name>' bytes")
        await self._tensors.repository.load(request.model_name, config_json=config_json, files=files)
        return kserve.RepositoryModelLoadResponse()

    async def _unload(self, request: kserve.RepositoryModelUnloadRequest) -> Message:
        _refuse_repository(request.repository_name)
        unload_dependents = False
        for name, parameter in request.parameters.items():
            if name != "unload_dependents" or parameter.WhichOneof("parameter_choice") != "bool_param":
                raise InvalidRequest("the only unload parameter is 'unload_dependents', true or false")
            unload_dependents = parameter.bool_param
        await self._tensors.repository.unload(request.model_name, unload_dependents=unload_dependents)
        return kserve.RepositoryModelUnloadResponse()

    # -- shared memory ------------------------------------------------------------------------------------------------------------

    async def _shared_memory_status(self, request: kserve.SystemSharedMemoryStatusRequest) -> Message:
        response = kserve.SystemSharedMemoryStatusResponse()
        for region in self._state.regions.status(request.name):
            status = response.regions[region.name]
            status.name, status.key, status.offset, status.byte_size = region.name, region.key, region.offset, region.byte_size
        return response

    async def _register(self, request: kserve.SystemSharedMemoryRegisterRequest) -> Message:
        self._state.regions.register(request.name, request.key, request.offset, request.byte_size)
        return kserve.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: kserve.SystemSharedMemoryUnregisterRequest) -> Message:
        if request.name:
            self._state.regions.unregister(request.name)
        else:
            self._state.regions.unregister_all()
        return kserve.SystemSharedMemoryUnregisterResponse()

    async def _cuda_status(self, request: kserve.CudaSharedMemoryStatusRequest) -> Message:
        if request.name:
            raise ModelNotFound(f"Unable to find cuda shared memory region: '{request.name}'")
        return kserve.CudaSharedMemoryStatusResponse()

    async def _cuda_register(self, request: kserve.CudaSharedMemoryRegisterRequest) -> Message:
        raise UnsupportedFeature(CUDA_REFUSAL)

    async def _cuda_unregister(self, request: kserve.CudaSharedMemoryUnregisterRequest) -> Message:
        return kserve.CudaSharedMemoryUnregisterResponse()

    # -- trace and log ------------------------------------------------------------------------------------------------------------

    async def _trace(self, request: kserve.TraceSettingRequest) -> Message:
        if request.model_name:
            self._tensors.repository.versions(request.model_name)
        changes: dict[str, Any] = {}
        for name, setting in request.settings.items():
            values = list(setting.value)
            changes[name] = None if not values else values if name == "trace_level" or len(values) > 1 else values[0]
        self._state.trace.update(changes, request.model_name)
        response = kserve.TraceSettingResponse()
        for name, value in self._state.trace.values(request.model_name).items():
            response.settings[name].value.extend([value] if isinstance(value, str) else value)
        return response

    async def _log(self, request: kserve.LogSettingsRequest) -> Message:
        changes: dict[str, Any] = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            if choice is None:
                raise InvalidRequest(f"log setting '{name[:64]}' has no value")
            changes[name] = getattr(setting, choice)
        self._state.log.update(changes)
        response = kserve.LogSettingsResponse()
        for name, value in self._state.log.values().items():
            setting = response.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                setting.uint32_param = value
            else:
                setting.string_param = value
        return response


def _refuse_repository(name: str) -> None:
    if name:
        raise UnsupportedFeature("'repository_name' specification is not supported")

# Made by scripts/generate_protocol.py.
from collections.abc import Iterable, Mapping

from google.protobuf.internal.containers import MessageMap, RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.message import Message

from trivium.protocol.model_config import ModelConfig

class ServerLiveRequest(Message):
    def __init__(self) -> None: ...

class ServerLiveResponse(Message):
    live: bool
    def __init__(self, *, live: bool | None = None) -> None: ...

class ServerReadyRequest(Message):
    def __init__(self) -> None: ...

class ServerReadyResponse(Message):
    ready: bool
    def __init__(self, *, ready: bool | None = None) -> None: ...

class ModelReadyRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str | None = None, version: str | None = None) -> None: ...

class ModelReadyResponse(Message):
    ready: bool
    def __init__(self, *, ready: bool | None = None) -> None: ...

class ServerMetadataRequest(Message):
    def __init__(self) -> None: ...

class ServerMetadataResponse(Message):
    name: str
    version: str
    extensions: RepeatedScalarFieldContainer[str]
    def __init__(self, *, name: str | None = None, version: str | None = None, extensions: Iterable[str] | None = None) -> None: ...

class ModelMetadataRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str | None = None, version: str | None = None) -> None: ...

class ModelMetadataResponse(Message):
    class TensorMetadata(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        def __init__(self, *, name: str | None = None, datatype: str | None = None, shape: Iterable[int] | None = None) -> None: ...

    name: str
    versions: RepeatedScalarFieldContainer[str]
    platform: str
    inputs: RepeatedCompositeFieldContainer[ModelMetadataResponse.TensorMetadata]
    outputs: RepeatedCompositeFieldContainer[ModelMetadataResponse.TensorMetadata]
    def __init__(
        self,
        *,
        name: str | None = None,
        versions: Iterable[str] | None = None,
        platform: str | None = None,
        inputs: Iterable[ModelMetadataResponse.TensorMetadata] | None = None,
        outputs: Iterable[ModelMetadataResponse.TensorMetadata] | None = None,
    ) -> None: ...

class InferParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    double_param: float
    uint64_param: int
    def __init__(
        self,
        *,
        bool_param: bool | None = None,
        int64_param: int | None = None,
        string_param: str | None = None,
        double_param: float | None = None,
        uint64_param: int | None = None,
    ) -> None: ...

class InferTensorContents(Message):
    bool_contents: RepeatedScalarFieldContainer[bool]
    int_contents: RepeatedScalarFieldContainer[int]
    int64_contents: RepeatedScalarFieldContainer[int]
    uint_contents: RepeatedScalarFieldContainer[int]
    uint64_contents: RepeatedScalarFieldContainer[int]
    fp32_contents: RepeatedScalarFieldContainer[float]
    fp64_contents: RepeatedScalarFieldContainer[float]
    bytes_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        bool_contents: Iterable[bool] | None = None,
        int_contents: Iterable[int] | None = None,
        int64_contents: Iterable[int] | None = None,
        uint_contents: Iterable[int] | None = None,
        uint64_contents: Iterable[int] | None = None,
        fp32_contents: Iterable[float] | None = None,
        fp64_contents: Iterable[float] | None = None,
        bytes_contents: Iterable[bytes] | None = None,
    ) -> None: ...

class ModelInferRequest(Message):
    class InferInputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: MessageMap[str, InferParameter]
        contents: InferTensorContents
        def __init__(
            self,
            *,
            name: str | None = None,
            datatype: str | None = None,
            shape: Iterable[int] | None = None,
            parameters: Mapping[str, InferParameter] | None = None,
            contents: InferTensorContents | None = None,
        ) -> None: ...

    class InferRequestedOutputTensor(Message):
        name: str
        parameters: MessageMap[str, InferParameter]
        def __init__(self, *, name: str | None = None, parameters: Mapping[str, InferParameter] | None = None) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MessageMap[str, InferParameter]
    inputs: RepeatedCompositeFieldContainer[ModelInferRequest.InferInputTensor]
    outputs: RepeatedCompositeFieldContainer[ModelInferRequest.InferRequestedOutputTensor]
    raw_input_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        model_name: str | None = None,
        model_version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, InferParameter] | None = None,
        inputs: Iterable[ModelInferRequest.InferInputTensor] | None = None,
        outputs: Iterable[ModelInferRequest.InferRequestedOutputTensor] | None = None,
        raw_input_contents: Iterable[bytes] | None = None,
    ) -> None: ...

class ModelInferResponse(Message):
    class InferOutputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: MessageMap[str, InferParameter]
        contents: InferTensorContents
        def __init__(
            self,
            *,
            name: str | None = None,
            datatype: str | None = None,
            shape: Iterable[int] | None = None,
            parameters: Mapping[str, InferParameter] | None = None,
            contents: InferTensorContents | None = None,
        ) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MessageMap[str, InferParameter]
    outputs: RepeatedCompositeFieldContainer[ModelInferResponse.InferOutputTensor]
    raw_output_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        model_name: str | None = None,
        model_version: str | None = None,
        id: str | None = None,
        parameters: Mapping[str, InferParameter] | None = None,
        outputs: Iterable[ModelInferResponse.InferOutputTensor] | None = None,
        raw_output_contents: Iterable[bytes] | None = None,
    ) -> None: ...

class ModelStreamInferResponse(Message):
    error_message: str
    infer_response: ModelInferResponse
    def __init__(self, *, error_message: str | None = None, infer_response: ModelInferResponse | None = None) -> None: ...

class ModelConfigRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str | None = None, version: str | None = None) -> None: ...

class ModelConfigResponse(Message):
    config: ModelConfig
    def __init__(self, *, config: ModelConfig | None = None) -> None: ...

class ModelStatisticsRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str | None = None, version: str | None = None) -> None: ...

class StatisticDuration(Message):
    count: int
    ns: int
    def __init__(self, *, count: int | None = None, ns: int | None = None) -> None: ...

class InferStatistics(Message):
    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration
    def __init__(
        self,
        *,
        success: StatisticDuration | None = None,
        fail: StatisticDuration | None = None,
        queue: StatisticDuration | None = None,
        compute_input: StatisticDuration | None = None,
        compute_infer: StatisticDuration | None = None,
        compute_output: StatisticDuration | None = None,
        cache_hit: StatisticDuration | None = None,
        cache_miss: StatisticDuration | None = None,
    ) -> None: ...

class InferResponseStatistics(Message):
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    success: StatisticDuration
    fail: StatisticDuration
    empty_response: StatisticDuration
    cancel: StatisticDuration
    def __init__(
        self,
        *,
        compute_infer: StatisticDuration | None = None,
        compute_output: StatisticDuration | None = None,
        success: StatisticDuration | None = None,
        fail: StatisticDuration | None = None,
        empty_response: StatisticDuration | None = None,
        cancel: StatisticDuration | None = None,
    ) -> None: ...

class InferBatchStatistics(Message):
    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    def __init__(
        self,
        *,
        batch_size: int | None = None,
        compute_input: StatisticDuration | None = None,
        compute_infer: StatisticDuration | None = None,
        compute_output: StatisticDuration | None = None,
    ) -> None: ...

class MemoryUsage(Message):
    type: str
    id: int
    byte_size: int
    def __init__(self, *, type: str | None = None, id: int | None = None, byte_size: int | None = None) -> None: ...

class ModelStatistics(Message):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: RepeatedCompositeFieldContainer[InferBatchStatistics]
    memory_usage: RepeatedCompositeFieldContainer[MemoryUsage]
    response_stats: MessageMap[str, InferResponseStatistics]
    def __init__(
        self,
        *,
        name: str | None = None,
        version: str | None = None,
        last_inference: int | None = None,
        inference_count: int | None = None,
        execution_count: int | None = None,
        inference_stats: InferStatistics | None = None,
        batch_stats: Iterable[InferBatchStatistics] | None = None,
        memory_usage: Iterable[MemoryUsage] | None = None,
        response_stats: Mapping[str, InferResponseStatistics] | None = None,
    ) -> None: ...

class ModelStatisticsResponse(Message):
    model_stats: RepeatedCompositeFieldContainer[ModelStatistics]
    def __init__(self, *, model_stats: Iterable[ModelStatistics] | None = None) -> None: ...

class ModelRepositoryParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    bytes_param: bytes
    def __init__(
        self, *, bool_param: bool | None = None, int64_param: int | None = None, string_param: str | None = None, bytes_param: bytes | None = None
    ) -> None: ...

class RepositoryIndexRequest(Message):
    repository_name: str
    ready: bool
    def __init__(self, *, repository_name: str | None = None, ready: bool | None = None) -> None: ...

class RepositoryIndexResponse(Message):
    class ModelIndex(Message):
        name: str
        version: str
        state: str
        reason: str
        def __init__(self, *, name: str | None = None, version: str | None = None, state: str | None = None, reason: str | None = None) -> None: ...

    models: RepeatedCompositeFieldContainer[RepositoryIndexResponse.ModelIndex]
    def __init__(self, *, models: Iterable[RepositoryIndexResponse.ModelIndex] | None = None) -> None: ...

class RepositoryModelLoadRequest(Message):
    repository_name: str
    model_name: str
    parameters: MessageMap[str, ModelRepositoryParameter]
    def __init__(
        self, *, repository_name: str | None = None, model_name: str | None = None, parameters: Mapping[str, ModelRepositoryParameter] | None = None
    ) -> None: ...

class RepositoryModelLoadResponse(Message):
    def __init__(self) -> None: ...

class RepositoryModelUnloadRequest(Message):
    repository_name: str
    model_name: str
    parameters: MessageMap[str, ModelRepositoryParameter]
    def __init__(
        self, *, repository_name: str | None = None, model_name: str | None = None, parameters: Mapping[str, ModelRepositoryParameter] | None = None
    ) -> None: ...

class RepositoryModelUnloadResponse(Message):
    def __init__(self) -> None: ...

class SystemSharedMemoryStatusRequest(Message):
    name: str
    def __init__(self, *, name: str | None = None) -> None: ...

class SystemSharedMemoryStatusResponse(Message):
    class RegionStatus(Message):
        name: str
        key: str
        offset: int
        byte_size: int
        def __init__(self, *, name: str | None = None, key: str | None = None, offset: int | None = None, byte_size: int | None = None) -> None: ...

    regions: MessageMap[str, SystemSharedMemoryStatusResponse.RegionStatus]
    def __init__(self, *, regions: Mapping[str, SystemSharedMemoryStatusResponse.RegionStatus] | None = None) -> None: ...

class SystemSharedMemoryRegisterRequest(Message):
    name: str
    key: str
    offset: int
    byte_size: int
    def __init__(self, *, name: str | None = None, key: str | None = None, offset: int | None = None, byte_size: int | None = None) -> None: ...

class SystemSharedMemoryRegisterResponse(Message):
    def __init__(self) -> None: ...

class SystemSharedMemoryUnregisterRequest(Message):
    name: str
    def __init__(self, *, name: str | None = None) -> None: ...

class SystemSharedMemoryUnregisterResponse(Message):
    def __init__(self) -> None: ...

class CudaSharedMemoryStatusRequest(Message):
    name: str
    def __init__(self, *, name: str | None = None) -> None: ...

class CudaSharedMemoryStatusResponse(Message):
    class RegionStatus(Message):
        name: str
        device_id: int
        byte_size: int
        def __init__(self, *, name: str | None = None, device_id: int | None = None, byte_size: int | None = None) -> None: ...

    regions: MessageMap[str, CudaSharedMemoryStatusResponse.RegionStatus]
    def __init__(self, *, regions: Mapping[str, CudaSharedMemoryStatusResponse.RegionStatus] | None = None) -> None: ...

class CudaSharedMemoryRegisterRequest(Message):
    name: str
    raw_handle: bytes
    device_id: int
    byte_size: int
    def __init__(
        self, *, name: str | None = None, raw_handle: bytes | None = None, device_id: int | None = None, byte_size: int | None = None
    ) -> None: ...

class CudaSharedMemoryRegisterResponse(Message):
    def __init__(self) -> None: ...

class CudaSharedMemoryUnregisterRequest(Message):
    name: str
    def __init__(self, *, name: str | None = None) -> None: ...

class CudaSharedMemoryUnregisterResponse(Message):
    def __init__(self) -> None: ...

class TraceSettingRequest(Message):
    class SettingValue(Message):
        value: RepeatedScalarFieldContainer[str]
        def __init__(self, *, value: Iterable[str] | None = None) -> None: ...

    settings: MessageMap[str, TraceSettingRequest.SettingValue]
    model_name: str
    def __init__(self, *, settings: Mapping[str, TraceSettingRequest.SettingValue] | None = None, model_name: str | None = None) -> None: ...

class TraceSettingResponse(Message):
    class SettingValue(Message):
        value: RepeatedScalarFieldContainer[str]
        def __init__(self, *, value: Iterable[str] | None = None) -> None: ...

    settings: MessageMap[str, TraceSettingResponse.SettingValue]
    def __init__(self, *, settings: Mapping[str, TraceSettingResponse.SettingValue] | None = None) -> None: ...

class LogSettingsRequest(Message):
    class SettingValue(Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(self, *, bool_param: bool | None = None, uint32_param: int | None = None, string_param: str | None = None) -> None: ...

    settings: MessageMap[str, LogSettingsRequest.SettingValue]
    def __init__(self, *, settings: Mapping[str, LogSettingsRequest.SettingValue] | None = None) -> None: ...

class LogSettingsResponse(Message):
    class SettingValue(Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(self, *, bool_param: bool | None = None, uint32_param: int | None = None, string_param: str | None = None) -> None: ...

    settings: MessageMap[str, LogSettingsResponse.SettingValue]
    def __init__(self, *, settings: Mapping[str, LogSettingsResponse.SettingValue] | None = None) -> None: ...

# Made by scripts/generate_protocol.py.
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from google.protobuf.internal.containers import MessageMap, RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer, ScalarMap
from google.protobuf.message import Message

from trivium.protocol.descriptors import EnumType

DataType: Final[EnumType]
TYPE_INVALID: Final[int]
TYPE_BOOL: Final[int]
TYPE_UINT8: Final[int]
TYPE_UINT16: Final[int]
TYPE_UINT32: Final[int]
TYPE_UINT64: Final[int]
TYPE_INT8: Final[int]
TYPE_INT16: Final[int]
TYPE_INT32: Final[int]
TYPE_INT64: Final[int]
TYPE_FP16: Final[int]
TYPE_FP32: Final[int]
TYPE_FP64: Final[int]
TYPE_STRING: Final[int]
TYPE_BF16: Final[int]

class ModelRateLimiter(Message):
    class Resource(Message):
        name: str
        count: int
        def __init__(self, *, name: str | None = None, count: int | None = None) -> None: ...

    resources: RepeatedCompositeFieldContainer[ModelRateLimiter.Resource]
    priority: int
    def __init__(self, *, resources: Iterable[ModelRateLimiter.Resource] | None = None, priority: int | None = None) -> None: ...

class ModelInstanceGroup(Message):
    Kind: ClassVar[EnumType]
    KIND_AUTO: ClassVar[int]
    KIND_GPU: ClassVar[int]
    KIND_CPU: ClassVar[int]
    KIND_MODEL: ClassVar[int]
    class SecondaryDevice(Message):
        SecondaryDeviceKind: ClassVar[EnumType]
        KIND_NVDLA: ClassVar[int]
        kind: int
        device_id: int
        def __init__(self, *, kind: int | None = None, device_id: int | None = None) -> None: ...

    name: str
    kind: int
    count: int
    rate_limiter: ModelRateLimiter
    gpus: RepeatedScalarFieldContainer[int]
    secondary_devices: RepeatedCompositeFieldContainer[ModelInstanceGroup.SecondaryDevice]
    profile: RepeatedScalarFieldContainer[str]
    passive: bool
    host_policy: str
    def __init__(
        self,
        *,
        name: str | None = None,
        kind: int | None = None,
        count: int | None = None,
        rate_limiter: ModelRateLimiter | None = None,
        gpus: Iterable[int] | None = None,
        secondary_devices: Iterable[ModelInstanceGroup.SecondaryDevice] | None = None,
        profile: Iterable[str] | None = None,
        passive: bool | None = None,
        host_policy: str | None = None,
    ) -> None: ...

class ModelTensorReshape(Message):
    shape: RepeatedScalarFieldContainer[int]
    def __init__(self, *, shape: Iterable[int] | None = None) -> None: ...

class ModelInput(Message):
    Format: ClassVar[EnumType]
    FORMAT_NONE: ClassVar[int]
    FORMAT_NHWC: ClassVar[int]
    FORMAT_NCHW: ClassVar[int]
    name: str
    data_type: int
    format: int
    dims: RepeatedScalarFieldContainer[int]
    reshape: ModelTensorReshape
    is_shape_tensor: bool
    allow_ragged_batch: bool
    optional: bool
    is_non_linear_format_io: bool
    def __init__(
        self,
        *,
        name: str | None = None,
        data_type: int | None = None,
        format: int | None = None,
        dims: Iterable[int] | None = None,
        reshape: ModelTensorReshape | None = None,
        is_shape_tensor: bool | None = None,
        allow_ragged_batch: bool | None = None,
        optional: bool | None = None,
        is_non_linear_format_io: bool | None = None,
    ) -> None: ...

class ModelOutput(Message):
    name: str
    data_type: int
    dims: RepeatedScalarFieldContainer[int]
    reshape: ModelTensorReshape
    label_filename: str
    is_shape_tensor: bool
    is_non_linear_format_io: bool
    def __init__(
        self,
        *,
        name: str | None = None,
        data_type: int | None = None,
        dims: Iterable[int] | None = None,
        reshape: ModelTensorReshape | None = None,
        label_filename: str | None = None,
        is_shape_tensor: bool | None = None,
        is_non_linear_format_io: bool | None = None,
    ) -> None: ...

class BatchInput(Message):
    Kind: ClassVar[EnumType]
    BATCH_ELEMENT_COUNT: ClassVar[int]
    BATCH_ACCUMULATED_ELEMENT_COUNT: ClassVar[int]
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: ClassVar[int]
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: ClassVar[int]
    BATCH_ITEM_SHAPE: ClassVar[int]
    BATCH_ITEM_SHAPE_FLATTEN: ClassVar[int]
    kind: int
    target_name: RepeatedScalarFieldContainer[str]
    data_type: int
    source_input: RepeatedScalarFieldContainer[str]
    def __init__(
        self,
        *,
        kind: int | None = None,
        target_name: Iterable[str] | None = None,
        data_type: int | None = None,
        source_input: Iterable[str] | None = None,
    ) -> None: ...

class BatchOutput(Message):
    Kind: ClassVar[EnumType]
    BATCH_SCATTER_WITH_INPUT_SHAPE: ClassVar[int]
    target_name: RepeatedScalarFieldContainer[str]
    kind: int
    source_input: RepeatedScalarFieldContainer[str]
    def __init__(self, *, target_name: Iterable[str] | None = None, kind: int | None = None, source_input: Iterable[str] | None = None) -> None: ...

class ModelVersionPolicy(Message):
    class Latest(Message):
        num_versions: int
        def __init__(self, *, num_versions: int | None = None) -> None: ...

    class All(Message):
        def __init__(self) -> None: ...

    class Specific(Message):
        versions: RepeatedScalarFieldContainer[int]
        def __init__(self, *, versions: Iterable[int] | None = None) -> None: ...

    latest: ModelVersionPolicy.Latest
    all: ModelVersionPolicy.All
    specific: ModelVersionPolicy.Specific
    def __init__(
        self,
        *,
        latest: ModelVersionPolicy.Latest | None = None,
        all: ModelVersionPolicy.All | None = None,
        specific: ModelVersionPolicy.Specific | None = None,
    ) -> None: ...

class ModelOptimizationPolicy(Message):
    ModelPriority: ClassVar[EnumType]
    PRIORITY_DEFAULT: ClassVar[int]
    PRIORITY_MAX: ClassVar[int]
    PRIORITY_MIN: ClassVar[int]
    class Graph(Message):
        level: int
        def __init__(self, *, level: int | None = None) -> None: ...

    class Cuda(Message):
        class GraphSpec(Message):
            class Shape(Message):
                dim: RepeatedScalarFieldContainer[int]
                def __init__(self, *, dim: Iterable[int] | None = None) -> None: ...

            class LowerBound(Message):
                batch_size: int
                input: MessageMap[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape]
                def __init__(
                    self, *, batch_size: int | None = None, input: Mapping[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape] | None = None
                ) -> None: ...

            batch_size: int
            input: MessageMap[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape]
            graph_lower_bound: ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound
            def __init__(
                self,
                *,
                batch_size: int | None = None,
                input: Mapping[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape] | None = None,
                graph_lower_bound: ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound | None = None,
            ) -> None: ...

        graphs: bool
        busy_wait_events: bool
        graph_spec: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.Cuda.GraphSpec]
        output_copy_stream: bool
        def __init__(
            self,
            *,
            graphs: bool | None = None,
            busy_wait_events: bool | None = None,
            graph_spec: Iterable[ModelOptimizationPolicy.Cuda.GraphSpec] | None = None,
            output_copy_stream: bool | None = None,
        ) -> None: ...

    class ExecutionAccelerators(Message):
        class Accelerator(Message):
            name: str
            parameters: ScalarMap[str, str]
            def __init__(self, *, name: str | None = None, parameters: Mapping[str, str] | None = None) -> None: ...

        gpu_execution_accelerator: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        cpu_execution_accelerator: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        def __init__(
            self,
            *,
            gpu_execution_accelerator: Iterable[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator] | None = None,
            cpu_execution_accelerator: Iterable[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator] | None = None,
        ) -> None: ...

    class PinnedMemoryBuffer(Message):
        enable: bool
        def __init__(self, *, enable: bool | None = None) -> None: ...

    graph: ModelOptimizationPolicy.Graph
    priority: int
    cuda: ModelOptimizationPolicy.Cuda
    execution_accelerators: ModelOptimizationPolicy.ExecutionAccelerators
    input_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    output_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    gather_kernel_buffer_threshold: int
    eager_batching: bool
    def __init__(
        self,
        *,
        graph: ModelOptimizationPolicy.Graph | None = None,
        priority: int | None = None,
        cuda: ModelOptimizationPolicy.Cuda | None = None,
        execution_accelerators: ModelOptimizationPolicy.ExecutionAccelerators | None = None,
        input_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer | None = None,
        output_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer | None = None,
        gather_kernel_buffer_threshold: int | None = None,
        eager_batching: bool | None = None,
    ) -> None: ...

class ModelQueuePolicy(Message):
    TimeoutAction: ClassVar[EnumType]
    REJECT: ClassVar[int]
    DELAY: ClassVar[int]
    timeout_action: int
    default_timeout_microseconds: int
    allow_timeout_override: bool
    max_queue_size: int
    def __init__(
        self,
        *,
        timeout_action: int | None = None,
        default_timeout_microseconds: int | None = None,
        allow_timeout_override: bool | None = None,
        max_queue_size: int | None = None,
    ) -> None: ...

class ModelDynamicBatching(Message):
    preferred_batch_size: RepeatedScalarFieldContainer[int]
    max_queue_delay_microseconds: int
    preserve_ordering: bool
    priority_levels: int
    default_priority_level: int
    default_queue_policy: ModelQueuePolicy
    priority_queue_policy: MessageMap[int, ModelQueuePolicy]
    def __init__(
        self,
        *,
        preferred_batch_size: Iterable[int] | None = None,
        max_queue_delay_microseconds: int | None = None,
        preserve_ordering: bool | None = None,
        priority_levels: int | None = None,
        default_priority_level: int | None = None,
        default_queue_policy: ModelQueuePolicy | None = None,
        priority_queue_policy: Mapping[int, ModelQueuePolicy] | None = None,
    ) -> None: ...

class ModelSequenceBatching(Message):
    class Control(Message):
        Kind: ClassVar[EnumType]
        CONTROL_SEQUENCE_START: ClassVar[int]
        CONTROL_SEQUENCE_READY: ClassVar[int]
        CONTROL_SEQUENCE_END: ClassVar[int]
        CONTROL_SEQUENCE_CORRID: ClassVar[int]
        kind: int
        int32_false_true: RepeatedScalarFieldContainer[int]
        fp32_false_true: RepeatedScalarFieldContainer[float]
        bool_false_true: RepeatedScalarFieldContainer[bool]
        data_type: int
        def __init__(
            self,
            *,
            kind: int | None = None,
            int32_false_true: Iterable[int] | None = None,
            fp32_false_true: Iterable[float] | None = None,
            bool_false_true: Iterable[bool] | None = None,
            data_type: int | None = None,
        ) -> None: ...

    class ControlInput(Message):
        name: str
        control: RepeatedCompositeFieldContainer[ModelSequenceBatching.Control]
        def __init__(self, *, name: str | None = None, control: Iterable[ModelSequenceBatching.Control] | None = None) -> None: ...

    class InitialState(Message):
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        zero_data: bool
        data_file: str
        name: str
        def __init__(
            self,
            *,
            data_type: int | None = None,
            dims: Iterable[int] | None = None,
            zero_data: bool | None = None,
            data_file: str | None = None,
            name: str | None = None,
        ) -> None: ...

    class State(Message):
        input_name: str
        output_name: str
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        initial_state: RepeatedCompositeFieldContainer[ModelSequenceBatching.InitialState]
        use_same_buffer_for_input_output: bool
        use_growable_memory: bool
        def __init__(
            self,
            *,
            input_name: str | None = None,
            output_name: str | None = None,
            data_type: int | None = None,
            dims: Iterable[int] | None = None,
            initial_state: Iterable[ModelSequenceBatching.InitialState] | None = None,
            use_same_buffer_for_input_output: bool | None = None,
            use_growable_memory: bool | None = None,
        ) -> None: ...

    class StrategyDirect(Message):
        max_queue_delay_microseconds: int
        minimum_slot_utilization: float
        def __init__(self, *, max_queue_delay_microseconds: int | None = None, minimum_slot_utilization: float | None = None) -> None: ...

    class StrategyOldest(Message):
        max_candidate_sequences: int
        preferred_batch_size: RepeatedScalarFieldContainer[int]
        max_queue_delay_microseconds: int
        preserve_ordering: bool
        def __init__(
            self,
            *,
            max_candidate_sequences: int | None = None,
            preferred_batch_size: Iterable[int] | None = None,
            max_queue_delay_microseconds: int | None = None,
            preserve_ordering: bool | None = None,
        ) -> None: ...

    direct: ModelSequenceBatching.StrategyDirect
    oldest: ModelSequenceBatching.StrategyOldest
    max_sequence_idle_microseconds: int
    control_input: RepeatedCompositeFieldContainer[ModelSequenceBatching.ControlInput]
    state: RepeatedCompositeFieldContainer[ModelSequenceBatching.State]
    iterative_sequence: bool
    def __init__(
        self,
        *,
        direct: ModelSequenceBatching.StrategyDirect | None = None,
        oldest: ModelSequenceBatching.StrategyOldest | None = None,
        max_sequence_idle_microseconds: int | None = None,
        control_input: Iterable[ModelSequenceBatching.ControlInput] | None = None,
        state: Iterable[ModelSequenceBatching.State] | None = None,
        iterative_sequence: bool | None = None,
    ) -> None: ...

class ModelEnsembling(Message):
    class Step(Message):
        model_name: str
        model_version: int
        input_map: ScalarMap[str, str]
        output_map: ScalarMap[str, str]
        model_namespace: str
        def __init__(
            self,
            *,
            model_name: str | None = None,
            model_version: int | None = None,
            input_map: Mapping[str, str] | None = None,
            output_map: Mapping[str, str] | None = None,
            model_namespace: str | None = None,
        ) -> None: ...

    step: RepeatedCompositeFieldContainer[ModelEnsembling.Step]
    max_inflight_requests: int
    def __init__(self, *, step: Iterable[ModelEnsembling.Step] | None = None, max_inflight_requests: int | None = None) -> None: ...

class ModelParameter(Message):
    string_value: str
    def __init__(self, *, string_value: str | None = None) -> None: ...

class ModelWarmup(Message):
    class Input(Message):
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        zero_data: bool
        random_data: bool
        input_data_file: str
        def __init__(
            self,
            *,
            data_type: int | None = None,
            dims: Iterable[int] | None = None,
            zero_data: bool | None = None,
            random_data: bool | None = None,
            input_data_file: str | None = None,
        ) -> None: ...

    name: str
    batch_size: int
    inputs: MessageMap[str, ModelWarmup.Input]
    count: int
    def __init__(
        self,
        *,
        name: str | None = None,
        batch_size: int | None = None,
        inputs: Mapping[str, ModelWarmup.Input] | None = None,
        count: int | None = None,
    ) -> None: ...

class ModelOperations(Message):
    op_library_filename: RepeatedScalarFieldContainer[str]
    def __init__(self, *, op_library_filename: Iterable[str] | None = None) -> None: ...

class ModelTransactionPolicy(Message):
    decoupled: bool
    def __init__(self, *, decoupled: bool | None = None) -> None: ...

class ModelRepositoryAgents(Message):
    class Agent(Message):
        name: str
        parameters: ScalarMap[str, str]
        def __init__(self, *, name: str | None = None, parameters: Mapping[str, str] | None = None) -> None: ...

    agents: RepeatedCompositeFieldContainer[ModelRepositoryAgents.Agent]
    def __init__(self, *, agents: Iterable[ModelRepositoryAgents.Agent] | None = None) -> None: ...

class ModelResponseCache(Message):
    enable: bool
    def __init__(self, *, enable: bool | None = None) -> None: ...

class ModelMetrics(Message):
    class MetricControl(Message):
        class MetricIdentifier(Message):
            family: str
            def __init__(self, *, family: str | None = None) -> None: ...

        class HistogramOptions(Message):
            buckets: RepeatedScalarFieldContainer[float]
            def __init__(self, *, buckets: Iterable[float] | None = None) -> None: ...

        metric_identifier: ModelMetrics.MetricControl.MetricIdentifier
        histogram_options: ModelMetrics.MetricControl.HistogramOptions
        def __init__(
            self,
            *,
            metric_identifier: ModelMetrics.MetricControl.MetricIdentifier | None = None,
            histogram_options: ModelMetrics.MetricControl.HistogramOptions | None = None,
        ) -> None: ...

    metric_control: RepeatedCompositeFieldContainer[ModelMetrics.MetricControl]
    def __init__(self, *, metric_control: Iterable[ModelMetrics.MetricControl] | None = None) -> None: ...

class ModelConfig(Message):
    name: str
    platform: str
    backend: str
    runtime: str
    version_policy: ModelVersionPolicy
    max_batch_size: int
    input: RepeatedCompositeFieldContainer[ModelInput]
    output: RepeatedCompositeFieldContainer[ModelOutput]
    batch_input: RepeatedCompositeFieldContainer[BatchInput]
    batch_output: RepeatedCompositeFieldContainer[BatchOutput]
    optimization: ModelOptimizationPolicy
    dynamic_batching: ModelDynamicBatching
    sequence_batching: ModelSequenceBatching
    ensemble_scheduling: ModelEnsembling
    instance_group: RepeatedCompositeFieldContainer[ModelInstanceGroup]
    default_model_filename: str
    cc_model_filenames: ScalarMap[str, str]
    metric_tags: ScalarMap[str, str]
    parameters: MessageMap[str, ModelParameter]
    model_warmup: RepeatedCompositeFieldContainer[ModelWarmup]
    model_operations: ModelOperations
    model_transaction_policy: ModelTransactionPolicy
    model_repository_agents: ModelRepositoryAgents
    response_cache: ModelResponseCache
    model_metrics: ModelMetrics
    def __init__(
        self,
        *,
        name: str | None = None,
        platform: str | None = None,
        backend: str | None = None,
        runtime: str | None = None,
        version_policy: ModelVersionPolicy | None = None,
        max_batch_size: int | None = None,
        input: Iterable[ModelInput] | None = None,
        output: Iterable[ModelOutput] | None = None,
        batch_input: Iterable[BatchInput] | None = None,
        batch_output: Iterable[BatchOutput] | None = None,
        optimization: ModelOptimizationPolicy | None = None,
        dynamic_batching: ModelDynamicBatching | None = None,
        sequence_batching: ModelSequenceBatching | None = None,
        ensemble_scheduling: ModelEnsembling | None = None,
        instance_group: Iterable[ModelInstanceGroup] | None = None,
        default_model_filename: str | None = None,
        cc_model_filenames: Mapping[str, str] | None = None,
        metric_tags: Mapping[str, str] | None = None,
        parameters: Mapping[str, ModelParameter] | None = None,
        model_warmup: Iterable[ModelWarmup] | None = None,
        model_operations: ModelOperations | None = None,
        model_transaction_policy: ModelTransactionPolicy | None = None,
        model_repository_agents: ModelRepositoryAgents | None = None,
        response_cache: ModelResponseCache | None = None,
        model_metrics: ModelMetrics | None = None,
    ) -> None: ...

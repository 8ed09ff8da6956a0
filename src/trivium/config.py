"""All settings: frozen dataclasses, one per concern, composed. Flags, environment variables, YAML keys and `docs/configuration.md` derive from them.

Every field has exactly one default, here, and its documentation in `doc(...)`. "auto" values are resolved by a pure function that returns
a new config, never filled in later. Unknown keys and impossible combinations raise `ConfigError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trivium.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
AttentionBackendName = Literal["auto", "triton", "flash", "cpu", "reference"]
SchedulingPolicy = Literal["fcfs", "priority"]
Quantization = Literal[
    "auto", "none", "awq", "awq_marlin", "bitsandbytes", "bitsandbytes-fp4", "bitsandbytes-nf4", "compressed-tensors", "eetq", "fp8", "gguf", "gptq",
    "gptq_marlin", "marlin",
]  # fmt: skip
METRIC_NAMES: Final = ("vllm", "tgi")
"""Servers under whose names metrics are shown."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def doc(default: Any, text: str) -> Any:
    """A dataclass field with its default and its help text."""
    return field(default=default, metadata={"doc": text})


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model, and how its files are read."""

    model: str = doc("", "Folder, .gguf file, hub name or URL (s3, oss, gs, http, https); empty: the packaged default model.")
    tokenizer: str | None = doc(None, "Folder, hub name or URL of the tokenizer when it is not the model's.")
    tokenizer_threads: int = doc(4, "Threads that tokenize long prompts.")
    skip_tokenizer_init: bool = doc(False, "Load no tokenizer: token ids in, token ids out.")
    hub: Literal["huggingface", "modelscope"] = doc("huggingface", "Whose names hub names are; HF_ENDPOINT names a mirror of the former.")
    revision: str | None = doc(None, "Branch, tag or commit of a hub model.")
    trust_remote_code: bool = doc(False, "Refused: Trivium never runs code from a model folder.")
    dtype: DType = doc(
        "auto", "Type of weights and activations; auto: the checkpoint's, bfloat16 where float32 weights came from GGUF and the device has it."
    )
    load_format: LoadFormat = doc("auto", "Where weights come from; dummy: random values, for speed runs.")
    quantization: Quantization = doc(
        "auto",
        "How weights are kept; auto: as the checkpoint has them; none: dequantized. bitsandbytes (int8), bitsandbytes-nf4, bitsandbytes-fp4, eetq (int8) and fp8 quantize plain weights on load; the rest names what the checkpoint must hold.",
    )
    max_model_len: int | None = doc(None, "Longest prompt and output together, in tokens; default: what the model's config says.")
    seed: int = doc(0, "Seed of unseeded requests' random streams.")
    generation_config: str = doc("auto", "Where sampling defaults come from: auto (the model's generation_config.json), vllm (none), or a folder.")
    override_generation_config: dict[str, Any] = field(default_factory=dict, metadata={"doc": "Sampling defaults that replace the model's."})
    served_model_name: tuple[str, ...] = doc((), "Names the API answers to; default: the model argument.")
    chat_template: str | None = doc(None, "File or literal Jinja template that replaces the model's own.")
    max_logprobs: int = doc(20, "Most logprobs a request may ask for; -1: no limit.")

    def __post_init__(self) -> None:
        if self.trust_remote_code:
            raise ConfigError("trust_remote_code is refused: Trivium never runs code that comes with a model.", param="trust_remote_code")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"max_model_len must be at least 1, got {self.max_model_len}.", param="max_model_len")
        if self.tokenizer_threads < 1:
            raise ConfigError(f"tokenizer_threads must be at least 1, got {self.tokenizer_threads}.", param="tokenizer_threads")
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs must be at least -1, got {self.max_logprobs}.", param="max_logprobs")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = doc(16, "Tokens per KV block: a power of two from 8 to 256.")
    gpu_memory_utilization: float = doc(0.92, "Share of the GPU's memory this engine may use in all.")
    kv_cache_memory_bytes: int | None = doc(None, "Exact size of the KV cache; default: measured on a GPU, a quarter of free memory on a CPU.")
    num_gpu_blocks_override: int | None = doc(None, "Exact number of KV blocks.")
    enable_prefix_caching: bool = doc(True, "Reuse the KV blocks of a prompt's start that was seen before.")
    kv_cache_dtype: Literal["auto", "fp8"] = doc(
        "auto", "Type of cached keys and values; auto: the model's; fp8 (e4m3, unscaled): half the memory, on GPUs that have it."
    )
    watermark: float = doc(0.01, "Share of blocks kept free when a new request is admitted, so that running ones can grow.")

    def __post_init__(self) -> None:
        size = self.block_size
        if size not in {8, 16, 32, 64, 128, 256}:
            raise ConfigError(f"block_size must be a power of two from 8 to 256, got {size}.", param="block_size")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}.", param="gpu_memory_utilization")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be in [0, 1), got {self.watermark}.", param="watermark")
        for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.", param=name)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What runs in each step."""

    max_num_seqs: int | None = doc(None, "Most sequences that run at once; default: 1024 on a large GPU, 256 elsewhere, 64 on a CPU.")
    max_num_batched_tokens: int | None = doc(None, "Token budget of one step; default: 8192 on a large GPU, 2048 elsewhere, 512 on a CPU.")
    scheduling_policy: SchedulingPolicy = doc("fcfs", "Order of the queue: first come first served, or by priority (lower first).")
    long_prefill_token_threshold: int = doc(0, "Most prompt tokens of one request in one step while others run; 0: no limit.")
    prompt_spread: int = doc(
        16,
        "Steps over which waiting prompts are spread while others generate, so that these don't stall; 1: none, as LLM() does for most throughput.",
    )
    pipeline_depth: int = doc(1, "Steps in flight beyond the one whose results are awaited; 0 runs each step to its end first (for debugging).")

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.", param=name)
        if self.prompt_spread < 1:
            raise ConfigError(f"prompt_spread must be at least 1, got {self.prompt_spread}.", param="prompt_spread")
        if self.pipeline_depth not in (0, 1):
            raise ConfigError(f"pipeline_depth must be 0 or 1, got {self.pipeline_depth}.", param="pipeline_depth")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError("long_prefill_token_threshold must not be negative.", param="long_prefill_token_threshold")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How one model is spread over devices."""

    tensor_parallel_size: int = doc(1, "Devices that share each layer.")

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ConfigError(f"tensor_parallel_size must be at least 1, got {self.tensor_parallel_size}.", param="tensor_parallel_size")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine process needs to know."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: Device = doc("auto", "cpu or cuda; auto: a GPU if there is one.")
    attention_backend: AttentionBackendName = doc(
        "auto", "triton and flash: GPUs; cpu: CPUs; reference: plain torch on either; auto: the device's own."
    )
    enforce_eager: bool = doc(False, "Neither CUDA graphs nor compiled code.")
    batch_invariant: bool | None = doc(
        None, "The same tokens bit for bit alone and in any batch; default: on a CPU, where it costs nothing. Refused over several ranks."
    )
    num_threads: int | None = doc(None, "CPU threads of the engine; default: all physical cores.")
    hang_timeout_s: float = doc(
        300.0, "Seconds without a sign of life after which a stuck engine is killed and restarted; longer than its longest step."
    )

    def __post_init__(self) -> None:
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, got {self.num_threads}.", param="num_threads")
        if not self.hang_timeout_s > 0:
            raise ConfigError(f"hang_timeout_s must be greater than 0, got {self.hang_timeout_s}.", param="hang_timeout_s")


@dataclass(frozen=True, kw_only=True)
class TgiConfig:
    """TGI's routes: the limits that their requests are held to."""

    max_best_of: int = doc(2, "Largest best_of of TGI's routes.")
    max_stop_sequences: int = doc(4, "Most stop strings of a request to TGI's routes.")
    max_top_n_tokens: int = doc(5, "Largest top_n_tokens of TGI's routes.")
    max_input_tokens: int | None = doc(None, "Longest prompt of TGI's routes, in tokens; default: the context less one.")
    max_client_batch_size: int | None = doc(None, "Most prompts of one request to the completions and Vertex routes; default: no limit of its own.")
    disable_grammar_support: bool = doc(False, "Refuse grammars and structured output, on every API.")
    compute_type: str = doc("gpu+optimized", "What TGI's x-compute-type header says.")

    def __post_init__(self) -> None:
        for name, least in (("max_best_of", 1), ("max_stop_sequences", 0), ("max_top_n_tokens", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}.", param=name)
        for name in ("max_input_tokens", "max_client_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.", param=name)
        if not self.compute_type.isascii() or not self.compute_type.isprintable():
            raise ConfigError("compute_type must be printable ASCII: it is the value of a header.", param="compute_type")


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """The HTTP server: where it listens, who may use it, and what it refuses before any model sees a request."""

    host: str = doc("0.0.0.0", "Address to listen on.")
    port: int = doc(8000, "Port to listen on; 0: any free one.")
    root_path: str = doc("", "Path prefix under which a proxy serves this server.")
    api_key: tuple[str, ...] = doc((), "Keys of which a request must carry one (Authorization: Bearer KEY), on every route but health and metrics.")
    allowed_origins: tuple[str, ...] = doc((), "Origins whose web pages may call this server (CORS); '*': any; default: none.")
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = doc(
        "info", "Log level of the HTTP server; info logs each request."
    )
    ignore_unknown_fields: bool = doc(False, "Ignore request fields that don't exist instead of refusing them by name.")
    trust_request_chat_template: bool = doc(False, "Let requests bring their own chat template.")
    return_tokens_as_token_ids: bool = doc(False, "Show tokens in logprobs as 'token_id:N' for every request.")
    enable_force_include_usage: bool = doc(False, "Send the usage chunk in every stream, asked for or not.")
    ignore_unknown_models: bool = doc(False, "Answer requests that name a model that doesn't exist with the first model, as TGI does.")
    metrics_names: tuple[str, ...] = doc(("vllm",), "Whose metric names /metrics uses for the models: vllm, tgi, or both.")
    max_queued_requests: int = doc(1024, "Sequences that may wait beyond those the engine runs at once; more are answered with 429.")
    max_concurrent_requests: int | None = doc(
        None, "Most sequences that run and wait in all, for each model; more are answered with 429. Default: no such limit."
    )
    fairness_header: str = doc(
        "",
        "Header that tells clients apart (authorization: by API key); the queue is then shared fairly between them. Empty: first come, first served.",
    )
    queue_timeout_s: float | None = doc(None, "Longest time a request may wait for its turn; then it is answered with 429. Default: no limit.")
    request_timeout_s: float | None = doc(None, "Longest time a request may take in all; default: no limit.")
    max_body_bytes: int = doc(16 * 1024 * 1024, "Largest request body.")
    max_tensor_bytes: int = doc(
        64 * 1024 * 1024, "Largest body of a KServe inference request, decompressed; its JSON part counts as a body of its own."
    )
    max_header_bytes: int = doc(64 * 1024, "Largest sum of request line and headers.")
    max_header_count: int = doc(100, "Most headers of a request.")
    header_timeout_s: float = doc(15.0, "Longest time from a request's first byte (or a new connection) to the end of its headers.")
    body_timeout_s: float = doc(60.0, "Longest time a request's body may take to arrive.")
    write_timeout_s: float = doc(60.0, "A client that reads nothing for this long while data waits for it is cut off.")
    keep_alive_timeout_s: float = doc(75.0, "An idle connection is closed after this long.")
    drain_delay_s: float = doc(0.0, "After SIGTERM, go on accepting requests for this long with readiness false, until load balancers have noticed.")
    drain_timeout_s: float = doc(30.0, "After SIGTERM, longest time for accepted requests to finish.")
    probe_timeout_s: float = doc(10.0, "The engine counts as ready when it answered a probe within this time.")
    tgi: TgiConfig = field(default_factory=TgiConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, got {self.port}.", param="port")
        for name in ("max_body_bytes", "max_tensor_bytes", "max_header_bytes", "max_header_count"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.", param=name)
        for name in ("header_timeout_s", "body_timeout_s", "write_timeout_s", "keep_alive_timeout_s", "probe_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0, got {getattr(self, name)}.", param=name)
        for name in ("max_queued_requests", "drain_delay_s", "drain_timeout_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}.", param=name)
        for name in ("request_timeout_s", "queue_timeout_s", "max_concurrent_requests"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be greater than 0, got {value}.", param=name)
        if self.fairness_header and _HEADER_NAME.fullmatch(self.fairness_header) is None:
            raise ConfigError(f"fairness_header must be the name of a header, got {self.fairness_header!r}.", param="fairness_header")
        unknown = [name for name in self.metrics_names if name not in METRIC_NAMES]
        if unknown:
            raise ConfigError(f"metrics_names may hold {', '.join(METRIC_NAMES)}, got {unknown[0]!r}.", param="metrics_names")
        if not all(self.api_key):
            raise ConfigError("api_key must not be empty.", param="api_key")


@dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """Models served from folders, with Triton's names: see docs/model-repository.md."""

    model_repository: tuple[str, ...] = doc((), "Folders of models to serve, each laid out as <model>/<version>/<files>.")
    model_control_mode: Literal["none", "explicit", "poll"] = doc(
        "none",
        "Which models are loaded: none (all, once), explicit (those of load_model and of the load API), poll (all, following changes on disk).",
    )
    load_model: tuple[str, ...] = doc((), "With explicit control: models to load at the start; '*': all.")
    repository_poll_secs: float = doc(15.0, "With poll control: seconds between looks at the disk.")
    model_config_name: str = doc("", "Take each model's configs/<name>.pbtxt where there is one.")
    disable_auto_complete_config: bool = doc(False, "Read nothing from model files that a configuration leaves out.")
    allow_python_models: bool = doc(False, "Run model.py files of the repository: whoever can write to it (or use the load API) can run code here.")
    exit_on_error: bool = doc(False, "End the server when a model can't be loaded at the start, as Triton does; otherwise the rest is served.")
    strict_readiness: bool = doc(False, "Be ready only while every model is, as Triton by default; otherwise once each has been tried.")
    backend_config: tuple[str, ...] = doc((), "Settings of back ends, as in onnxruntime,default-max-batch-size=8; without a name before it: of all.")
    model_load_thread_count: int = doc(4, "Most model versions that are loaded at the same time.")
    model_load_retry_count: int = doc(0, "How often a model that can't be loaded is tried again.")
    rate_limit: Literal["off", "execution_count"] = doc("off", "Share the resources that instance groups name: off, or execution_count.")
    rate_limit_resource: tuple[str, ...] = doc(
        (), "Copies of a resource there are, as in R1:4 or R1:4:0 (on device 0); default: the most one instance asks for."
    )
    metrics_config: tuple[str, ...] = doc(
        (),
        "Metrics of models: counter_latencies, summary_latencies and histogram_latencies (each =true or =false), summary_quantiles=0.5:0.05,0.99:0.001.",
    )
    cache_config: tuple[str, ...] = doc((), "Response cache of models that enable it, as in local,size=104857600 (bytes); default: none.")

    def __post_init__(self) -> None:
        for name in ("load_model", "model_config_name", "cache_config", "backend_config", "rate_limit_resource"):
            if getattr(self, name) and not self.model_repository:
                raise ConfigError(f"{name} needs a model_repository.", param=name)
        if self.model_control_mode != "none" and not self.model_repository:
            raise ConfigError("model_control_mode needs a model_repository.", param="model_control_mode")
        if self.rate_limit_resource and self.rate_limit == "off":
            raise ConfigError("rate_limit_resource needs rate_limit execution_count.", param="rate_limit_resource")
        if self.load_model and self.model_control_mode != "explicit":
            raise ConfigError("load_model needs model_control_mode explicit.", param="load_model")
        if not self.repository_poll_secs > 0:
            raise ConfigError(f"repository_poll_secs must be greater than 0, got {self.repository_poll_secs}.", param="repository_poll_secs")
        if self.model_load_thread_count < 1:
            raise ConfigError(f"model_load_thread_count must be at least 1, got {self.model_load_thread_count}.", param="model_load_thread_count")
        if self.model_load_retry_count < 0:
            raise ConfigError("model_load_retry_count must not be negative.", param="model_load_retry_count")
        if "/" in self.model_config_name:
            raise ConfigError("model_config_name must be a file name without its ending.", param="model_config_name")


@dataclass(frozen=True, kw_only=True)
class GrpcConfig:
    """KServe's gRPC service, and the metrics port that goes with it. Both listen on the HTTP server's address and ask for its keys."""

    allow_grpc: bool = doc(True, "Serve gRPC at all.")
    grpc_port: int | None = doc(None, "Port of the gRPC service, 0: any free one; default: 8001 with a model repository, otherwise none.")
    grpc_max_message_bytes: int = doc(64 * 1024 * 1024, "Largest gRPC request, decompressed.")
    grpc_compression: Literal["none", "deflate", "gzip"] = doc("none", "How gRPC answers are compressed; requests may be, either way.")
    allow_metrics: bool = doc(True, "Serve /metrics on a port of its own as well.")
    metrics_port: int | None = doc(None, "Second port that serves /metrics, 0: any free one; default: 8002 with a model repository, otherwise none.")
    allow_client_shm: bool = doc(True, "Let clients on this machine register system shared memory (files under /dev/shm) for tensors.")
    trace_file: str = doc("", "File that request traces are appended to, once a client switches tracing on; default: tracing can't be switched on.")

    def __post_init__(self) -> None:
        for name in ("grpc_port", "metrics_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name} must be from 0 to 65535, got {port}.", param=name)
        if not 1 <= self.grpc_max_message_bytes < 2**31:
            raise ConfigError(
                f"grpc_max_message_bytes must be from 1 to 2147483647, got {self.grpc_max_message_bytes}.", param="grpc_max_message_bytes"
            )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything `trivium serve` can be told."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    repository: RepositoryConfig = field(default_factory=RepositoryConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)

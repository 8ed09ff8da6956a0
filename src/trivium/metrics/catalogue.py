"""Every metric, declared once. Names and meaning of `vllm:*` are vLLM's, so that its dashboards work; buckets are finer where tokens take 1 ms.

Counters are exposed with `_total` appended. Label values come from closed sets: model names, finish reasons, route templates, status codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_BUCKETS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0),
)
"""Seconds; a request may take from a millisecond to half an hour."""
TOKEN_LATENCY_BUCKETS: Final = (
    *(0.0002, 0.0005, 0.00075, 0.001, 0.00125, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025),
    *(0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds between two tokens of one sequence."""
TOKEN_COUNT_BUCKETS: Final = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5) if digit * 10**power <= 2_000_000)
ITERATION_BUCKETS: Final = tuple(float(2**power) for power in range(15))
N_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
PREEMPTION_BUCKETS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
SIZE_BUCKETS: Final = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`name` as exposed, without the `_total` that Prometheus appends to counters."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ("model_name", "engine")
    buckets: tuple[float, ...] = ()


def _gauge(name: str, doc: str, labels: tuple[str, ...] = ("model_name", "engine")) -> Metric:
    return Metric(name=name, kind="gauge", doc=doc, labels=labels)


def _counter(name: str, doc: str, labels: tuple[str, ...] = ("model_name", "engine")) -> Metric:
    return Metric(name=name, kind="counter", doc=doc, labels=labels)


def _histogram(name: str, doc: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ("model_name", "engine")) -> Metric:
    return Metric(name=name, kind="histogram", doc=doc, buckets=buckets, labels=labels)


# -- the engine's gauges and counters, as it reports them ---------------------------------------------------------------------------

NUM_REQUESTS_RUNNING = _gauge("vllm:num_requests_running", "Sequences in the engine's running batch.")
NUM_REQUESTS_WAITING = _gauge("vllm:num_requests_waiting", "Sequences that wait to be scheduled.")
KV_CACHE_USAGE = _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks that requests hold, 0 to 1.")
CACHE_CONFIG_INFO = _gauge(
    "vllm:cache_config_info", "Always 1; the labels describe the KV cache.", ("model_name", "engine", "block_size", "num_gpu_blocks", "cache_dtype")
)
NUM_PREEMPTIONS = _counter("vllm:num_preemptions", "Times a running sequence lost its blocks and had to wait again.")
PREFIX_CACHE_QUERIES = _counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
PREFIX_CACHE_HITS = _counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
PROMPT_TOKENS = _counter("vllm:prompt_tokens", "Prompt tokens processed, cached ones included.")
GENERATION_TOKENS = _counter("vllm:generation_tokens", "Tokens generated.")
ITERATION_TOKENS = _histogram("vllm:iteration_tokens_total", "Tokens computed in one engine step.", ITERATION_BUCKETS)

# -- one observation per sequence, measured at the client ---------------------------------------------------------------------------

PROMPT_TOKENS_CACHED = _counter("vllm:prompt_tokens_cached", "Prompt tokens that needed no computing.")
REQUEST_SUCCESS = _counter("vllm:request_success", "Sequences that ended, by finish reason.", ("model_name", "engine", "finished_reason"))
TIME_TO_FIRST_TOKEN = _histogram("vllm:time_to_first_token_seconds", "From the request's arrival to its first token.", LATENCY_BUCKETS)
INTER_TOKEN_LATENCY = _histogram("vllm:inter_token_latency_seconds", "Between two tokens of one sequence.", TOKEN_LATENCY_BUCKETS)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "vllm:request_time_per_output_token_seconds", "Mean time per token after the first, one observation a sequence.", TOKEN_LATENCY_BUCKETS
)
E2E_LATENCY = _histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", LATENCY_BUCKETS)
QUEUE_TIME = _histogram("vllm:request_queue_time_seconds", "From arrival to the (last) time the sequence was scheduled.", LATENCY_BUCKETS)
INFERENCE_TIME = _histogram("vllm:request_inference_time_seconds", "From scheduled to the last token.", LATENCY_BUCKETS)
PREFILL_TIME = _histogram("vllm:request_prefill_time_seconds", "From scheduled to the first token after it.", LATENCY_BUCKETS)
DECODE_TIME = _histogram("vllm:request_decode_time_seconds", "From the first token after being scheduled to the last.", LATENCY_BUCKETS)
REQUEST_PROMPT_TOKENS = _histogram("vllm:request_prompt_tokens", "Length of prompts, in tokens.", TOKEN_COUNT_BUCKETS)
REQUEST_GENERATION_TOKENS = _histogram("vllm:request_generation_tokens", "Length of outputs, in tokens.", TOKEN_COUNT_BUCKETS)
REQUEST_PREEMPTIONS = _histogram("vllm:request_num_preemptions", "Preemptions a sequence met.", PREEMPTION_BUCKETS)
REQUEST_PREFILL_COMPUTED = _histogram(
    "vllm:request_prefill_kv_computed_tokens", "Prompt tokens whose keys and values had to be computed.", TOKEN_COUNT_BUCKETS
)

# -- one observation per request ----------------------------------------------------------------------------------------------------

REQUEST_MAX_GENERATION_TOKENS = _histogram("vllm:request_max_num_generation_tokens", "Longest output among a request's choices.", TOKEN_COUNT_BUCKETS)
REQUEST_PARAMS_N = _histogram("vllm:request_params_n", "The request's n.", N_BUCKETS)
REQUEST_PARAMS_MAX_TOKENS = _histogram("vllm:request_params_max_tokens", "The request's max_tokens, after defaults.", TOKEN_COUNT_BUCKETS)
ADMISSION_REJECTIONS = _counter("vllm:admission_rejections", "Requests refused before they reached the engine.", ("model_name", "reason"))

# -- the HTTP server ----------------------------------------------------------------------------------------------------------------

HTTP_REQUESTS = _counter("http_requests", "HTTP requests answered, by status.", ("method", "handler", "status"))
HTTP_DURATION = _histogram(
    "http_request_duration_seconds", "From the end of the headers to the end of the answer.", LATENCY_BUCKETS, ("method", "handler")
)
HTTP_REQUEST_SIZE = _histogram("http_request_size_bytes", "Size of request bodies.", SIZE_BUCKETS, ("method", "handler"))
HTTP_IN_FLIGHT = _gauge("http_requests_in_flight", "HTTP requests being answered.", ())

# -- the service --------------------------------------------------------------------------------------------------------------------

ENGINE_UP = _gauge("trivium:engine_up", "1 while the model's engine runs.", ("model_name", "engine"))
HELD_SEQUENCES = _gauge(
    "trivium:num_requests_held", "Sequences that wait for their turn before the engine, where the queue is shared fairly.", ("model_name",)
)
VALIDATION_TIME = _histogram("trivium:request_validation_seconds", "From a request's arrival to the end of its checks.", LATENCY_BUCKETS)
WORKER_RESTARTS = _counter("trivium:worker_restarts", "Worker processes started again after they had ended.", ("model", "version"))
LOG_LINES_DROPPED = _counter("trivium:log_lines_dropped", "Log lines that could not be written.", ())

CATALOGUE: Final[tuple[Metric, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

"""Triton's metrics, with its names and texts. They are text of our own: prometheus_client would append `_total` to counters.

Who has figures (a model version, the machine) is a source in `Registry.triton_sources` and gives its points when the page is read.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

FIRST_RESPONSE_BUCKETS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
SUMMARY_WINDOW_S: Final = 60.0
SUMMARY_OBSERVATIONS: Final = 20_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TritonMetric:
    kind: Literal["counter", "gauge", "histogram", "summary"]
    name: str
    doc: str


class Point(NamedTuple):
    """One line of the page. `suffix` is `_bucket`, `_sum`, `_count` or nothing."""

    metric: TritonMetric
    labels: Labels
    value: float
    suffix: str = ""


class Summary:
    """Count and sum of everything; quantiles of the last minute, or of its last 20 000 observations if there were more."""

    __slots__ = ("_recent", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=SUMMARY_OBSERVATIONS)

    def observe(self, value: float) -> None:
        self.count += 1
        self.total += value
        self._recent.append((time.monotonic(), value))

    def quantiles(self, wanted: tuple[float, ...]) -> list[float]:
        """NaN where nothing was observed in time."""
        oldest = time.monotonic() - SUMMARY_WINDOW_S
        values = sorted(value for at, value in list(self._recent) if at >= oldest)
        if not values:
            return [math.nan] * len(wanted)
        return [values[min(len(values) - 1, math.ceil(quantile * len(values)) - 1)] for quantile in wanted]


def render(points: Iterable[Point]) -> bytes:
    """In Prometheus' text format 0.0.4: each metric once, with the points of all sources, in the order of their first appearance."""
    by_metric: dict[TritonMetric, list[Point]] = {}
    for point in points:
        by_metric.setdefault(point.metric, []).append(point)
    lines: list[str] = []
    for metric, found in by_metric.items():
        lines += [f"# HELP {metric.name} {metric.doc}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{point.suffix}{_labels(point.labels)} {_number(point.value)}" for point in found]
    return "".join(f"{line}\n" for line in lines).encode()


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


# -- models of a repository ---------------------------------------------------------------------------------------------------------

SUCCESS = TritonMetric("counter", "nv_inference_request_success", "Number of successful inference requests, all batch sizes")
FAILURE = TritonMetric("counter", "nv_inference_request_failure", "Number of failed inference requests, all batch sizes")
COUNT = TritonMetric("counter", "nv_inference_count", "Number of inferences performed (does not include cached requests)")
EXEC_COUNT = TritonMetric("counter", "nv_inference_exec_count", "Number of model executions performed (does not include cached requests)")
REQUEST_DURATION = TritonMetric(
    "counter", "nv_inference_request_duration_us", "Cumulative inference request duration in microseconds (includes cached requests)"
)
QUEUE_DURATION = TritonMetric(
    "counter", "nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)"
)
COMPUTE_INPUT_DURATION = TritonMetric(
    "counter", "nv_inference_compute_input_duration_us", "Cumulative compute input duration in microseconds (does not include cached requests)"
)
COMPUTE_INFER_DURATION = TritonMetric(
    "counter", "nv_inference_compute_infer_duration_us", "Cumulative compute inference duration in microseconds (does not include cached requests)"
)
COMPUTE_OUTPUT_DURATION = TritonMetric(
    "counter",
    "nv_inference_compute_output_duration_us",
    "Cumulative inference compute output duration in microseconds (does not include cached requests)",
)
PENDING = TritonMetric("gauge", "nv_inference_pending_request_count", "Instantaneous number of pending requests awaiting execution per-model.")
LOAD_DURATION = TritonMetric("gauge", "nv_model_load_duration_secs", "Model load time in seconds")
FIRST_RESPONSE = TritonMetric("histogram", "nv_inference_first_response_histogram_ms", "Duration from request to first response in milliseconds")
REQUEST_SUMMARY = TritonMetric(
    "summary", "nv_inference_request_summary_us", "Summary of inference request duration in microseconds (includes cached requests)"
)
QUEUE_SUMMARY = TritonMetric(
    "summary", "nv_inference_queue_summary_us", "Summary of inference queuing duration in microseconds (includes cached requests)"
)
COMPUTE_INPUT_SUMMARY = TritonMetric(
    "summary", "nv_inference_compute_input_summary_us", "Summary of compute input duration in microseconds (does not include cached requests)"
)
COMPUTE_INFER_SUMMARY = TritonMetric(
    "summary", "nv_inference_compute_infer_summary_us", "Summary of compute inference duration in microseconds (does not include cached requests)"
)
COMPUTE_OUTPUT_SUMMARY = TritonMetric(
    "summary",
    "nv_inference_compute_output_summary_us",
    "Summary of inference compute output duration in microseconds (does not include cached requests)",
)
CACHE_HITS = TritonMetric("counter", "nv_cache_num_hits_per_model", "Number of cache hits per model")
CACHE_MISSES = TritonMetric("counter", "nv_cache_num_misses_per_model", "Number of cache misses per model")
CACHE_HIT_DURATION = TritonMetric("counter", "nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds")
CACHE_MISS_DURATION = TritonMetric("counter", "nv_cache_miss_duration_per_model", "Total cache miss duration per model, in microseconds")

# -- the machine, as Triton shows it ------------------------------------------------------------------------------------------------

CPU_UTILIZATION = TritonMetric("gauge", "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]")
CPU_MEMORY_TOTAL = TritonMetric("gauge", "nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes")
CPU_MEMORY_USED = TritonMetric("gauge", "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes")
GPU_UTILIZATION = TritonMetric("gauge", "nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)")
GPU_MEMORY_TOTAL = TritonMetric("gauge", "nv_gpu_memory_total_bytes", "GPU total memory, in bytes")
GPU_MEMORY_USED = TritonMetric("gauge", "nv_gpu_memory_used_bytes", "GPU used memory, in bytes")
GPU_POWER_USAGE = TritonMetric("gauge", "nv_gpu_power_usage", "GPU power usage in watts")
GPU_POWER_LIMIT = TritonMetric("gauge", "nv_gpu_power_limit", "GPU power management limit in watts")
ENERGY = TritonMetric("counter", "nv_energy_consumption", "GPU energy consumption in joules since the Triton Server started")

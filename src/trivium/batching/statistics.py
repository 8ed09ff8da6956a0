"""What Triton's statistics and metrics say of one model version, as plain counters that cost next to nothing to move.

Meaning of the figures (Triton's statistics extension): a request that succeeded adds to `success`, `queue` and the three `compute` durations, each
with the time of the whole batch it ran in; `inference_count` counts rows, `execution_count` batches; answers from the response cache add to
`success` and `cache_hit` only. Durations are nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trivium.execution import ExecutionTimes


class FailureReason(StrEnum):
    """Label of `nv_inference_request_failure`."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Duration:
    """How often something happened, and how long it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns


class BatchStatistics:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()

    def add(self, times: ExecutionTimes) -> None:
        self.compute_input.add(times.input_ns)
        self.compute_infer.add(times.infer_ns)
        self.compute_output.add(times.output_ns)


class ResponseStatistics:
    """The n-th responses of a decoupled model's requests."""

    __slots__ = ("cancel", "compute_infer", "compute_output", "empty_response", "fail", "success")

    def __init__(self) -> None:
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.success = Duration()
        self.fail = Duration()
        self.empty_response = Duration()
        self.cancel = Duration()


@dataclass(frozen=True)
class MemoryUsage:
    """Memory of one kind (`CPU`, `GPU`) and device that a model version holds."""

    type: str
    id: int
    byte_size: int


class ModelStatistics:
    """Written by the event loop's thread only; a reader in that thread sees figures that fit each other."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.last_inference_ms = 0
        """Unix time of the last execution, in milliseconds; 0: never."""
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.failures: dict[FailureReason, int] = dict.fromkeys(FailureReason, 0)
        self.batches: dict[int, BatchStatistics] = {}
        self.responses: dict[int, ResponseStatistics] = {}
        self.memory_usage: list[MemoryUsage] = []

    def count_execution(self, rows: int, times: ExecutionTimes, now_ms: int) -> None:
        self.execution_count += 1
        self.last_inference_ms = max(self.last_inference_ms, now_ms)
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchStatistics()
        batch.add(times)

    def count_success(self, *, rows: int, total_ns: int, queue_ns: int, times: ExecutionTimes) -> None:
        self.inference_count += rows
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute_input.add(times.input_ns)
        self.compute_infer.add(times.infer_ns)
        self.compute_output.add(times.output_ns)

    def count_failure(self, reason: FailureReason, total_ns: int) -> None:
        self.fail.add(total_ns)
        self.failures[reason] += 1

    def count_cache_hit(self, *, total_ns: int, lookup_ns: int) -> None:
        self.success.add(total_ns)
        self.queue.add(total_ns - lookup_ns)
        self.cache_hit.add(lookup_ns)

    def count_cache_miss(self, insertion_ns: int) -> None:
        self.success.ns += insertion_ns
        self.cache_miss.add(insertion_ns)

    def response(self, index: int) -> ResponseStatistics:
        """Of the response `index` (0 for the first)."""
        found = self.responses.get(index)
        if found is None:
            found = self.responses[index] = ResponseStatistics()
        return found

"""What a server and its models say of themselves, for HTTP as JSON and for gRPC as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trivium import __version__
from trivium.backends.tensor_base import ModelSignature
from trivium.batching.statistics import Duration, ModelStatistics
from trivium.infer import TensorSpec

SERVER_NAME: Final = "trivium"
SERVER_VERSION: Final = __version__
EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Triton's list: clients look here before they use a feature. CUDA shared memory answers its status and refuses registrations."""

DURATIONS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
BATCH_DURATIONS: Final = ("compute_input", "compute_infer", "compute_output")
RESPONSE_DURATIONS: Final = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": EXTENSIONS}


def model_metadata(signature: ModelSignature, versions: Sequence[int]) -> dict[str, Any]:
    return {
        "name": signature.name,
        "versions": [str(version) for version in versions],
        "platform": signature.platform,
        "inputs": [_spec(spec) for spec in signature.inputs],
        "outputs": [_spec(spec) for spec in signature.outputs],
    }


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": str(spec.datatype), "shape": spec.shape}


def statistics_document(found: Sequence[ModelStatistics]) -> dict[str, Any]:
    """Triton's JSON of the statistics extension; gRPC's message has the same names."""
    return {"model_stats": [_model_statistics(statistics) for statistics in found]}


def _model_statistics(statistics: ModelStatistics) -> dict[str, Any]:
    return {
        "name": statistics.name,
        "version": str(statistics.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": _durations(statistics, DURATIONS),
        "response_stats": {str(index): _durations(response, RESPONSE_DURATIONS) for index, response in sorted(statistics.responses.items())},
        "batch_stats": [{"batch_size": rows, **_durations(batch, BATCH_DURATIONS)} for rows, batch in sorted(statistics.batches.items())],
        "memory_usage": [{"type": usage.type, "id": usage.id, "byte_size": usage.byte_size} for usage in statistics.memory_usage],
    }


def _durations(holder: object, names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    found: dict[str, Duration] = {name: getattr(holder, name) for name in names}
    return {name: {"count": duration.count, "ns": duration.ns} for name, duration in found.items()}

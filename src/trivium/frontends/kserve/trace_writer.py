"""Traces of requests: one JSON object a line in the trace file, with Triton's names for the moments, in nanoseconds of the monotonic clock."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, TextIO

from trivium.backends.tensor_base import Inference
from trivium.backends.tensor_inference import TensorInference
from trivium.frontends.asgi import encode_json
from trivium.frontends.kserve.trace import OFF, TraceSettings
from trivium.infer import InferRequest

logger = logging.getLogger(__name__)


class TraceWriter:
    """Asks the settings about each request while tracing is on for any model. Belongs to the event loop."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._num_seen: dict[str, int] = {}
        self._num_begun = 0
        self._num_written = 0
        self._file: TextIO | None = None
        self._path = ""

    @property
    def is_on(self) -> bool:
        return self._settings.is_on

    def watch(self, request: InferRequest, inference: Inference) -> None:
        """Write a trace once the inference ends, if this request is one of those that are traced."""
        values = self._settings.values(request.model)
        seen = self._num_seen.get(request.model, 0)
        self._num_seen[request.model] = seen + 1
        count = int(values["trace_count"])
        if values["trace_level"] == [OFF] or seen % int(values["trace_rate"]) or 0 <= count <= self._num_begun:
            return
        self._num_begun += 1
        inference.add_done_callback(partial(self._write, self._num_begun, request, inference, time.monotonic_ns(), values))

    def _write(self, number: int, request: InferRequest, inference: Inference, started_ns: int, values: dict[str, Any]) -> None:
        moments = {"REQUEST_START": started_ns, **_moments(inference), "REQUEST_END": time.monotonic_ns()}
        trace = {
            "id": number,
            "model_name": request.model,
            "model_version": request.version,
            "request_id": request.id,
            "timestamps": [{"name": name, "ns": ns} for name, ns in moments.items()],
        }
        frequency = int(values["log_frequency"])
        path = values["trace_file"]
        try:
            self._open(f"{path}.{self._num_written // frequency}" if frequency else path).write(encode_json(trace).decode() + "\n")
        except OSError as error:
            logger.warning("a trace could not be written: %s", error.strerror)
        self._num_written += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: str) -> TextIO:
        if self._file is None or path != self._path:
            self.close()
            # It stays open from trace to trace.
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
            self._path = path
        return self._file


def _moments(inference: Inference) -> dict[str, int]:
    if not isinstance(inference, TensorInference):
        return {}
    moments = {"QUEUE_START": inference.arrival_ns}
    if inference.started_ns:
        moments["COMPUTE_START"] = inference.started_ns
    times = inference.times
    if times is not None:
        moments["COMPUTE_INPUT_END"] = inference.started_ns + times.input_ns
        moments["COMPUTE_OUTPUT_START"] = inference.started_ns + times.input_ns + times.infer_ns
        moments["COMPUTE_END"] = inference.started_ns + times.input_ns + times.infer_ns + times.output_ns
    return moments

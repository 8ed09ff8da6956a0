"""`EnsembleModel`: a model that is steps of other models. Each step goes through its model's own scheduler, so that batching happens there."""

from __future__ import annotations

import time
from collections.abc import Callable

from trivium.backends.ensemble_graph import EnsembleGraph
from trivium.backends.ensemble_run import EnsembleRun
from trivium.backends.tensor_base import Inference, ModelCaller, ModelSignature
from trivium.backends.tensor_checks import RequestChecker
from trivium.backends.tensor_gate import Gate
from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.batching.model_metrics import Latencies
from trivium.batching.statistics import FailureReason, ModelStatistics
from trivium.errors import GenerationFailed, NotReady, TriviumError
from trivium.execution import ExecutionTimes
from trivium.infer import InferRequest, InferResponse


class EnsembleModel:
    """See `TensorModel`. Has no instances and no queue of its own."""

    def __init__(self, signature: ModelSignature, graph: EnsembleGraph, caller: ModelCaller, *, max_in_flight: int = 0) -> None:
        """`max_in_flight`: how many requests of one step run at once for one request of the ensemble (decoupled steps make many); 0: no limit."""
        self._signature = signature
        self._graph = graph
        self._caller = caller
        self._max_in_flight = max_in_flight
        self._checker = RequestChecker(signature, batches=False)
        self._statistics = ModelStatistics(signature.name, signature.version)
        self._running: dict[TensorInference, None] = {}
        self._is_closed = False
        self.gate: Gate | None = None
        self.latencies: Latencies | None = None
        self.on_close: Callable[[], None] = lambda: None

    @property
    def signature(self) -> ModelSignature:
        return self._signature

    @property
    def statistics(self) -> ModelStatistics:
        return self._statistics

    @property
    def is_alive(self) -> bool:
        return not self._is_closed

    @property
    def num_pending(self) -> int:
        return 0

    def infer(self, request: InferRequest) -> Inference:
        if self._is_closed:
            raise NotReady(f"Request for unknown model: '{request.model}' has no available versions")
        arrival_ns = time.monotonic_ns()
        try:
            batch_size, _ = self._checker.check(request)
        except TriviumError:
            self._statistics.count_failure(FailureReason.OTHER, time.monotonic_ns() - arrival_ns)
            raise
        inference = TensorInference(self, request, arrival_ns=arrival_ns, batch_size=batch_size, shape_key=None)
        inference.stage = Stage.RUNNING
        inference.started_ns = arrival_ns
        self._running[inference] = None
        EnsembleRun(self._signature, self._graph, self._caller, inference, max_in_flight=self._max_in_flight).start()
        return inference

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.on_close()
        for inference in list(self._running):
            inference.end_with(NotReady(f"model '{self._signature.name}' is being unloaded"), FailureReason.OTHER)

    # -- what an inference tells its model ----------------------------------------------------------------------------------------

    def withdraw(self, inference: TensorInference) -> None:
        raise AssertionError("an ensemble has no queue")

    def reschedule(self, inference: TensorInference) -> None:
        inference.fail(GenerationFailed(f"ensemble '{self._signature.name}' has no iterative sequences"))

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        return response

    def on_response(self, inference: TensorInference, response: InferResponse) -> None:
        """Statistics of responses are those of the steps' models."""
        if self.latencies is not None and inference.num_responses == 0:
            self.latencies.observe_first_response(time.monotonic_ns() - inference.arrival_ns)

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None:
        self._running.pop(inference, None)
        total_ns = inference.ended_ns - inference.arrival_ns
        if reason is not None:
            self._statistics.count_failure(reason, total_ns)
            return
        times = ExecutionTimes(infer_ns=total_ns)
        self._statistics.count_execution(inference.batch_size, times, time.time_ns() // 1_000_000)
        self._statistics.count_success(rows=inference.batch_size, total_ns=total_ns, queue_ns=0, times=times)
        if self.latencies is not None:
            self.latencies.observe_success(total_ns, 0, 0, total_ns, 0)

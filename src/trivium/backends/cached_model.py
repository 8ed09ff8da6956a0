"""`CachedModel`: a model in front of which the response cache answers what was answered before."""

from __future__ import annotations

import time

from trivium.backends.response_cache import CacheKey, ResponseCache, cache_key
from trivium.backends.tensor_base import Inference, ModelSignature, TensorModel
from trivium.backends.tensor_gate import Gate
from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.batching.statistics import FailureReason, ModelStatistics
from trivium.errors import InternalError
from trivium.infer import InferRequest, InferResponse


class CachedModel:
    """See `TensorModel`. Decoupled models and sequences can't be cached; the configuration is refused before."""

    def __init__(self, model: TensorModel, cache: ResponseCache, gate: Gate | None = None) -> None:
        """`gate`: the model's, where its responses keep the order of the requests."""
        signature = model.signature
        assert not signature.is_decoupled and not signature.is_sequence
        self._model = model
        self._cache = cache
        self._owner = cache.new_owner()
        self._gate = gate

    @property
    def signature(self) -> ModelSignature:
        return self._model.signature

    @property
    def statistics(self) -> ModelStatistics:
        return self._model.statistics

    @property
    def is_alive(self) -> bool:
        return self._model.is_alive

    @property
    def num_pending(self) -> int:
        return self._model.num_pending

    def infer(self, request: InferRequest) -> Inference:
        arrival_ns = time.monotonic_ns()
        key = cache_key(self._owner, request)
        response = self._cache.get(key, request.id)
        lookup_ns = time.monotonic_ns() - arrival_ns
        if response is None:
            inference = self._model.infer(request)
            assert isinstance(inference, TensorInference)
            inference.recorder = lambda answer: self._keep(key, answer, lookup_ns)
            return inference
        inference = TensorInference(_HitOwner(self.statistics, lookup_ns), request, arrival_ns=arrival_ns, batch_size=1, shape_key=None)
        inference.stage = Stage.RUNNING
        if self._gate is not None:
            self._gate.enter(inference)
        inference.respond(response)
        return inference

    async def close(self) -> None:
        await self._model.close()
        self._cache.drop(self._owner)

    def _keep(self, key: CacheKey, response: InferResponse, lookup_ns: int) -> None:
        started_ns = time.monotonic_ns()
        self._cache.put(key, response)
        self.statistics.count_cache_miss(lookup_ns + time.monotonic_ns() - started_ns)


class _HitOwner:
    """Of a request that the cache answered."""

    def __init__(self, statistics: ModelStatistics, lookup_ns: int) -> None:
        self._statistics = statistics
        self._lookup_ns = lookup_ns

    def withdraw(self, inference: TensorInference) -> None:
        raise AssertionError("it never waits")

    def reschedule(self, inference: TensorInference) -> None:
        inference.fail(InternalError("it never runs"))

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        return response

    def on_response(self, inference: TensorInference, response: InferResponse) -> None:
        """Hits have no statistics of responses."""

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None:
        self._statistics.count_cache_hit(total_ns=inference.ended_ns - inference.arrival_ns, lookup_ns=self._lookup_ns)

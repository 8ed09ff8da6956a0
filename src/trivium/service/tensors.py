"""`TensorService`: what frontends do with tensor models. Names become leases, every inference is counted until it ended, a drain waits for them.

It belongs to the event loop of its `InferenceService`, and costs a request one dictionary entry and one callback: tensor models answer in
well under a millisecond.
"""

from __future__ import annotations

import asyncio
from functools import partial

from trivium.backends.llm_tensors import BeginGeneration, LlmTensorModel
from trivium.backends.tensor_base import Inference, ModelSignature, TensorModel
from trivium.backends.tensor_repository import TensorLease, TensorRepository
from trivium.errors import DeadlineExceeded, NotReady, TriviumError, UnsupportedFeature
from trivium.infer import InferRequest


class TensorService:
    """The tensor half of an `InferenceService`."""

    def __init__(self, repository: TensorRepository, *, request_timeout_s: float | None = None, begin: BeginGeneration | None = None) -> None:
        """`begin`: how generations of language models begin, where requests wait for their turn."""
        self.repository = repository
        self._begin = begin
        self._request_timeout_s = request_timeout_s
        self._running: dict[Inference, TensorLease] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._refuses_work = False

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def infer(self, request: InferRequest, *, decoupled_refusal: str = "") -> Inference:
        """The caller iterates it or has it delivered, and cancels it when nobody waits any more.

        Raises `ModelNotFound`, `NotReady`, `InvalidRequest` or `Overloaded` at once; what goes wrong later ends the inference. With a
        `decoupled_refusal`, decoupled models are refused with that text as `UnsupportedFeature`.
        """
        lease = self.lease(request.model, request.version)
        try:
            if decoupled_refusal and lease.model.signature.is_decoupled:
                raise UnsupportedFeature(decoupled_refusal)
            inference = lease.model.infer(request) if self._begin is None else self._infer_in_turn(lease.model, request, self._begin)
        except BaseException:
            lease.release()
            raise
        if not self._running:
            self._idle.clear()
        self._running[inference] = lease
        inference.add_done_callback(partial(self._on_done, inference))
        if self._request_timeout_s is not None:
            self._start_deadline(inference, self._request_timeout_s)
        return inference

    def lease(self, name: str, version: str = "") -> TensorLease:
        """Raises what `TensorRepository.lease` raises, and `NotReady` while the server shuts down."""
        if self._refuses_work:
            raise NotReady("The server is shutting down.")
        return self.repository.lease(name, version)

    def signature(self, name: str, version: str = "") -> ModelSignature:
        """Raises what `lease` raises."""
        lease = self.lease(name, version)
        try:
            return lease.model.signature
        finally:
            lease.release()

    # -- the end ------------------------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Inferences that have not ended."""
        return len(self._running)

    def refuse_work(self) -> None:
        """From now on new requests are answered with `NotReady`."""
        self._refuses_work = True

    async def wait_idle(self) -> None:
        """Returns once no inference runs."""
        await self._idle.wait()

    def fail_all(self, error: TriviumError) -> None:
        for inference in list(self._running):
            inference.fail(error)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _infer_in_turn(self, model: TensorModel, request: InferRequest, begin: BeginGeneration) -> Inference:
        return model.infer(request, begin) if isinstance(model, LlmTensorModel) else model.infer(request)

    def _start_deadline(self, inference: Inference, timeout_s: float) -> None:
        error = DeadlineExceeded(f"The request did not finish within {timeout_s:g} s.")
        timer = asyncio.get_running_loop().call_later(timeout_s, inference.fail, error)
        inference.add_done_callback(timer.cancel)

    def _on_done(self, inference: Inference) -> None:
        lease = self._running.pop(inference, None)
        if lease is not None:
            lease.release()
        if not self._running:
            self._idle.set()

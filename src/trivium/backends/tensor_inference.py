"""One request of a tensor model from its arrival to its end: what the scheduler queues, the instance answers and the client reads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from trivium.backends.tensor_checks import log_prefix
from trivium.backends.tensor_gate import Gate
from trivium.batching.pending import Pending, ShapeKey
from trivium.batching.statistics import FailureReason
from trivium.errors import InternalError, RequestCancelled, TriviumError
from trivium.execution import ExecutionTimes
from trivium.infer import InferRequest, InferResponse

logger = logging.getLogger(__name__)


class Stage(IntEnum):
    WAITING = 0
    RUNNING = 1
    ENDED = 2
    """The model has nothing more to say, or nobody listens."""


class InferenceOwner(Protocol):
    """The model an inference belongs to."""

    def withdraw(self, inference: TensorInference) -> None:
        """It leaves the queue."""
        ...

    def reschedule(self, inference: TensorInference) -> None: ...

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        """What the client gets to see of what the model said."""
        ...

    def on_response(self, inference: TensorInference, response: InferResponse) -> None:
        """For statistics; before it is delivered."""
        ...

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None:
        """It has ended; `reason` None: well."""
        ...


class TensorInference(Pending):
    """An `execution.Execution` and a `backends.tensor_base.Inference` in one object, since most requests live for a millisecond or less."""

    __slots__ = (
        "_cancel_callback",
        "_done_callbacks",
        "_error",
        "_is_delivered",
        "_on_error",
        "_on_response",
        "_owner",
        "_responses",
        "_waiter",
        "ended_ns",
        "gate",
        "num_responses",
        "original",
        "recorder",
        "request",
        "stage",
        "started_ns",
        "times",
    )

    def __init__(self, owner: InferenceOwner, request: InferRequest, *, arrival_ns: int, batch_size: int, shape_key: ShapeKey) -> None:
        self.arrival_ns = arrival_ns
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.priority = request.priority
        self.timeout_us = request.timeout_us
        self.correlation_id = request.correlation_id
        self.sequence_start = request.sequence_start
        self.sequence_end = request.sequence_end
        self.deadline_ns = 0
        self.level = 0
        self.place = None
        self.is_queued = False
        self.is_cancelled = False
        self.original = request
        self.request = request
        """What the model gets to see."""
        self.stage = Stage.WAITING
        self.started_ns = 0
        self.ended_ns = 0
        self.times: ExecutionTimes | None = None
        self.num_responses = 0
        self.gate: Gate | None = None
        self.recorder: Callable[[InferResponse], None] | None = None
        """Called with the final response, before it is delivered."""
        self._owner = owner
        self._responses: deque[InferResponse] | None = None
        self._error: TriviumError | None = None
        self._is_delivered = False
        self._on_response: Callable[[InferResponse], None] | None = None
        self._on_error: Callable[[TriviumError], None] | None = None
        self._cancel_callback: Callable[[], None] | None = None
        self._done_callbacks: list[Callable[[], None]] | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- the instance's side ------------------------------------------------------------------------------------------------------

    def respond(self, response: InferResponse) -> None:
        if self.stage is Stage.ENDED:
            return
        owner = self._owner
        try:
            response = owner.transform(self, response)
        except TriviumError as error:
            self.fail(error)
            return
        owner.on_response(self, response)
        self.num_responses += 1
        if response.is_final:
            self.stage = Stage.ENDED
            self.ended_ns = time.monotonic_ns()
            owner.on_end(self, None)
            if self.recorder is not None:
                self.recorder(response)
        if self.gate is None:
            self.deliver(response)
        else:
            self.gate.put(self, response)

    def fail(self, error: TriviumError) -> None:
        """Also from outside, whatever it is doing."""
        if self.stage is Stage.ENDED:
            return
        was_running = self.stage is Stage.RUNNING
        reason = FailureReason.CANCELED if isinstance(error, RequestCancelled) else FailureReason.BACKEND if was_running else FailureReason.OTHER
        self.end_with(error, reason)

    def reschedule(self) -> None:
        if self.stage is Stage.RUNNING:
            self._owner.reschedule(self)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        if self.is_cancelled:
            callback()
        else:
            self._cancel_callback = callback

    def end_with(self, error: TriviumError, reason: FailureReason) -> None:
        """As `fail`, counted under `reason`."""
        if self.stage is Stage.ENDED:
            return
        self._leave(reason)
        if self.gate is None:
            self.deliver_error(error)
        else:
            self.gate.put(self, error)

    # -- the client's side --------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> TensorInference:
        return self

    async def __anext__(self) -> InferResponse:
        while not self._responses:
            if self._error is not None:
                raise self._error
            if self._is_delivered:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._responses.popleft()

    def deliver_to(self, on_response: Callable[[InferResponse], None], on_error: Callable[[TriviumError], None]) -> None:
        self._on_response = on_response
        self._on_error = on_error
        while self._responses:
            on_response(self._responses.popleft())
        if self._error is not None:
            on_error(self._error)

    async def aclose(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._on_response = self._on_error = None
        if self._is_delivered:
            return
        if self.stage is not Stage.ENDED:
            self._leave(FailureReason.CANCELED)
        if self.gate is not None:
            self.gate.drop(self)
        self.deliver_error(RequestCancelled("The request was cancelled."))

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        if self._is_delivered:
            callback()
        elif self._done_callbacks is None:
            self._done_callbacks = [callback]
        else:
            self._done_callbacks.append(callback)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _leave(self, reason: FailureReason) -> None:
        was_waiting = self.is_queued
        self.stage = Stage.ENDED
        self.ended_ns = time.monotonic_ns()
        self.is_cancelled = True
        if was_waiting:
            self._owner.withdraw(self)
        self._owner.on_end(self, reason)
        if self._cancel_callback is not None:
            callback, self._cancel_callback = self._cancel_callback, None
            callback()

    def deliver(self, response: InferResponse) -> None:
        """Hand it to the client now."""
        is_final = response.is_final
        if is_final:
            self._is_delivered = True
        if self._on_response is not None:
            try:
                self._on_response(response)
            except Exception:
                logger.exception("A response could not be delivered.")
        elif self._responses is None:
            self._responses = deque((response,))
        else:
            self._responses.append(response)
        if self._waiter is not None:
            self._wake()
        if is_final and self._done_callbacks is not None:
            self._run_done_callbacks()

    def deliver_error(self, error: TriviumError) -> None:
        self._is_delivered = True
        self._error = error
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                logger.exception("An error could not be delivered.")
        if self._waiter is not None:
            self._wake()
        if self._done_callbacks is not None:
            self._run_done_callbacks()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _run_done_callbacks(self) -> None:
        callbacks, self._done_callbacks = self._done_callbacks, None
        for callback in callbacks or ():
            callback()


def no_response(inference: TensorInference) -> InternalError:
    return InternalError(f"{log_prefix(inference.request)}the model ended without a response")

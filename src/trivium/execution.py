"""The seam between a model's scheduler and what computes: executions go in, responses come back on them.

The scheduler (`batching`) decides which requests run together on which instance; an instance (`client.worker` in front of a worker
process, an ensemble, a stand-in in a test) runs them. Neither knows the other's insides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from trivium.errors import TriviumError
from trivium.infer import InferRequest, InferResponse


class ExecutionTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Where one batch spent its time, in nanoseconds: building inputs, computing, taking outputs apart."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class Execution(Protocol):
    """One request that is being executed. Made by the scheduler, answered by the instance: any number of `respond`, the last one with
    `is_final`, or one `fail`. What comes after the end is ignored."""

    @property
    def request(self) -> InferRequest: ...

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for the answer any more."""
        ...

    def respond(self, response: InferResponse) -> None: ...

    def fail(self, error: TriviumError) -> None: ...

    def reschedule(self) -> None:
        """Instead of ending it: run it again with a later batch (iterative sequences). Fails the execution if its model isn't one."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, when nobody waits for the answer any more; at once if that is so already. One callback an execution."""
        ...


class ModelInstance(Protocol):
    """One copy of a model that runs one batch at a time."""

    @property
    def name(self) -> str: ...

    @property
    def is_alive(self) -> bool:
        """False while it is being restarted; the scheduler gives it no work then."""
        ...

    async def wait_alive(self) -> None:
        """Return once `is_alive`. Raises `TriviumError` if it is given up."""
        ...

    @property
    def max_in_flight(self) -> int:
        """How many batches it takes at once. 1; or 2 if the next can be sent while one is computed, so that its process never waits."""
        ...

    async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
        """Run `batch` and return when the next may come: every execution has ended by then, unless the model is decoupled. Never raises for
        what a model does wrong: that fails the executions it concerns."""
        ...

    async def close(self) -> None: ...

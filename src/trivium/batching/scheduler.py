"""What every scheduler of a model can do. Decisions only: who calls it holds the clock, the timers and the instances."""

from __future__ import annotations

from typing import Protocol, TypeVar

from trivium.batching.pending import Pending

P = TypeVar("P", bound=Pending)


class BatchScheduler(Protocol[P]):
    """`now_ns` never goes back from one call to the next. Instances are numbers from 0."""

    def __len__(self) -> int:
        """Requests that wait."""
        ...

    def add(self, pending: P, now_ns: int) -> None:
        """Raises `Overloaded` if there is no room and `InvalidRequest` for what this scheduler can't take."""
        ...

    def remove(self, pending: P) -> None:
        """Nobody waits for it any more; it must be waiting."""
        ...

    def is_ready(self, instance: int, now_ns: int) -> bool:
        """Whether `take` would give a batch."""
        ...

    def take(self, instance: int, now_ns: int) -> list[P]:
        """The batch that `instance`, which is free, shall run now; empty if there is nothing that may run now."""
        ...

    def finish(self, instance: int, batch: list[P], now_ns: int) -> None:
        """`instance` has run `batch`."""
        ...

    def reschedule(self, pending: P) -> None:
        """It has run, but not to its end: it comes again before anything that waits."""
        ...

    def clear(self) -> list[P]:
        """Takes out everything that waits."""
        ...

    def expire(self, now_ns: int) -> list[P]:
        """Those whose time in the queue is over; they no longer wait."""
        ...

    def next_event_ns(self, now_ns: int) -> int:
        """When the clock alone changes what `is_ready` or `expire` say; 0: never."""
        ...

"""Runs a scheduler against a list of arrivals with a clock of its own: decisions of minutes take microseconds, and are the same each time."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from trivium.batching.pending import Pending
from trivium.batching.scheduler import BatchScheduler
from trivium.errors import TriviumError

MS = 1_000_000


@dataclass
class Outcome:
    """What became of the requests, by their position in the list of arrivals; times in milliseconds."""

    finished_ms: dict[int, float] = field(default_factory=dict)
    batch_of: dict[int, int] = field(default_factory=dict)
    """Number of the execution a request was in, from 0."""
    batches: list[list[int]] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)
    """Instance of each execution."""
    started_ms: list[float] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    expired_ms: dict[int, float] = field(default_factory=dict)

    @property
    def order(self) -> list[int]:
        """Requests in order of execution."""
        return [request for batch in self.batches for request in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


Returns = Callable[[int], float]
"""Milliseconds after the answer to request n at which its client sends another; negative: it doesn't."""


def simulate(
    scheduler: BatchScheduler[Pending],
    arrivals: list[tuple[float, Pending]],
    *,
    service_ms: float = 0.0,
    num_instances: int = 1,
    until_ms: float = 1e7,
    returns: Returns | None = None,
) -> Outcome:
    """`arrivals` are (milliseconds, request) in order of time; a request's `arrival_ns` is set here. Those that come because of an answer
    are numbered on."""
    outcome = Outcome()
    numbers = {id(pending): number for number, (_, pending) in enumerate(arrivals)}
    free_at = [0] * num_instances
    running: list[list[Pending] | None] = [None] * num_instances
    last_used = [0] * num_instances
    waiting = list(arrivals)
    kept = [pending for _, pending in arrivals]
    now = 0
    while now <= until_ms * MS:
        for instance in range(num_instances):
            batch = running[instance]
            if batch is not None and free_at[instance] <= now:
                running[instance] = None
                for pending in batch if returns else ():
                    after_ms = returns(numbers[id(pending)])
                    if after_ms >= 0:
                        again = Pending(arrival_ns=0)
                        kept.append(again)
                        numbers[id(again)] = len(numbers)
                        insort(waiting, (now / MS + after_ms, again), key=lambda arrival: arrival[0])
                outcome.finished_ms.update({numbers[id(pending)]: now / MS for pending in batch})
                scheduler.finish(instance, batch, now)
        while waiting and waiting[0][0] * MS <= now:
            at, pending = waiting.pop(0)
            pending.arrival_ns = int(at * MS)
            try:
                scheduler.add(pending, now)
            except TriviumError as error:
                outcome.refused[numbers[id(pending)]] = error.message
        outcome.expired_ms.update({numbers[id(pending)]: now / MS for pending in scheduler.expire(now)})
        for instance in sorted(range(num_instances), key=last_used.__getitem__):
            if running[instance] is None and scheduler.is_ready(instance, now):
                batch = scheduler.take(instance, now)
                assert batch, "is_ready promised a batch"
                running[instance], free_at[instance] = batch, now + int(service_ms * MS)
                last_used[instance] = now + 1
                outcome.batch_of.update({numbers[id(pending)]: len(outcome.batches) for pending in batch})
                outcome.batches.append([numbers[id(pending)] for pending in batch])
                outcome.instances.append(instance)
                outcome.started_ms.append(now / MS)
        times = [free_at[instance] for instance in range(num_instances) if running[instance] is not None]
        times += [math.ceil(waiting[0][0] * MS)] if waiting else []
        event = scheduler.next_event_ns(now)
        assert event == 0 or event > now, f"an event in the past: {event} at {now}"
        times += [event] if event else []
        if not times:
            break
        now = max(now, min(times))
    return outcome


def requests(times_ms: list[float], **fields: object) -> list[tuple[float, Pending]]:
    return [(at, Pending(arrival_ns=0, **fields)) for at in times_ms]  # type: ignore[arg-type]

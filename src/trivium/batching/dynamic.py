"""The dynamic batcher: which waiting requests run together, and when waiting for more is over.

The rule is Triton's. Requests are looked at in order, never split, never passed over. Those at the head that fit `max_batch_size` and may share a
batch are the candidate; it is *sealed* once the next one can't join. Then, first match:

1. part of the candidate has exactly a preferred size, and the oldest has not waited for `max_delay`: run that part (the largest such);
2. the candidate is sealed or reaches the largest preferred size, or the delay is over or none is set: run all of it;
3. wait until the delay is over.

Without a delay an instance may still pause for the clients it has just answered, see `regrouping`.
"""

from __future__ import annotations

from typing import Generic

from trivium.batching.pending import ShapeKey
from trivium.batching.queue import PolicyQueue
from trivium.batching.regrouping import Regrouping
from trivium.batching.scheduler import P
from trivium.batching.settings import BatchSettings


class DynamicBatcher(Generic[P]):
    """See `BatchScheduler`. Serves all instances of a model alike; also a model without batching, whose batches are of one request."""

    def __init__(self, settings: BatchSettings, *, regroups: bool = False) -> None:
        """`regroups`: see `regrouping`; for a model with one instance."""
        can_regroup = regroups and not settings.max_delay_ns and settings.max_batch_size > 1
        self._regrouping = Regrouping() if can_regroup else None
        self._max_batch_size = settings.max_batch_size
        self._preferred = frozenset(settings.preferred_sizes)
        self._max_preferred = max(settings.preferred_sizes)
        self._max_delay_ns = settings.max_delay_ns
        self._takes_one = settings.max_batch_size == 1
        self._queue: PolicyQueue[P] = PolicyQueue(settings)
        self._candidate = _Candidate()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, pending: P, now_ns: int) -> None:
        queue = self._queue
        queue.append(pending)
        if self._candidate.version == queue.version:
            self._extend(pending)
        if self._regrouping is not None:
            self._regrouping.on_arrival(now_ns)

    def remove(self, pending: P) -> None:
        self._queue.remove(pending)

    def is_ready(self, instance: int, now_ns: int) -> bool:
        return self._decide(now_ns) > 0

    def take(self, instance: int, now_ns: int) -> list[P]:
        num = self._decide(now_ns)
        if num and self._regrouping is not None:
            self._regrouping.on_start(now_ns)
        return self._queue.pop_batch(num) if num else []

    def finish(self, instance: int, batch: list[P], now_ns: int) -> None:
        if self._regrouping is not None:
            self._regrouping.on_finish(len(batch), now_ns)

    def reschedule(self, pending: P) -> None:
        raise AssertionError("only requests of sequences run again")

    def clear(self) -> list[P]:
        return self._queue.pop_batch(len(self._queue))

    def expire(self, now_ns: int) -> list[P]:
        return self._queue.expire(now_ns)

    def next_event_ns(self, now_ns: int) -> int:
        deadline_ns = self._queue.next_deadline_ns()
        if not len(self._queue):
            return deadline_ns
        wait_ns = 0
        if self._max_delay_ns:
            wait_ns = self._scanned().oldest_ns + self._max_delay_ns
        elif self._regrouping is not None:
            wait_ns = self._regrouping.pause_until_ns(now_ns)
        if wait_ns <= now_ns:
            return deadline_ns
        return min(deadline_ns, wait_ns) if deadline_ns else wait_ns

    def _decide(self, now_ns: int) -> int:
        """How many requests from the head run now."""
        if not len(self._queue):
            return 0
        if self._takes_one:
            return 1
        candidate = self._scanned()
        is_late = self._max_delay_ns > 0 and now_ns - candidate.oldest_ns >= self._max_delay_ns
        if candidate.num_preferred and not is_late:
            return candidate.num_preferred
        if candidate.is_sealed or candidate.rows >= self._max_preferred or is_late:
            return candidate.num
        is_paused = self._regrouping is not None and self._regrouping.pause_until_ns(now_ns) > 0
        return 0 if self._max_delay_ns or is_paused else candidate.num

    def _scanned(self) -> _Candidate:
        if self._candidate.version != self._queue.version:
            self._candidate = _Candidate(version=self._queue.version)
            for pending in self._queue:
                self._extend(pending)
                if self._candidate.is_sealed:
                    break
        return self._candidate

    def _extend(self, pending: P) -> None:
        candidate = self._candidate
        if candidate.is_sealed:
            return
        if candidate.num == 0:
            candidate.shape_key = pending.shape_key
            candidate.oldest_ns = pending.arrival_ns
        elif candidate.rows + pending.batch_size > self._max_batch_size or candidate.shape_key != pending.shape_key:
            candidate.is_sealed = True
            return
        candidate.num += 1
        candidate.rows += pending.batch_size
        candidate.oldest_ns = min(candidate.oldest_ns, pending.arrival_ns)
        if candidate.rows in self._preferred:
            candidate.num_preferred = candidate.num


class _Candidate:
    """Requests at the queue's head that may run together, as far as they have been looked at. Holds as long as the queue's version."""

    __slots__ = ("is_sealed", "num", "num_preferred", "oldest_ns", "rows", "shape_key", "version")

    def __init__(self, *, version: int = -1) -> None:
        self.version = version
        self.num = 0
        self.rows = 0
        self.num_preferred = 0
        """How many of the first requests have together the largest preferred size that is reached; 0: none is."""
        self.oldest_ns = 0
        self.shape_key: ShapeKey = None
        self.is_sealed = False

"""Sequences: requests that belong together run one after the other on one instance, in a slot that is theirs until they end.

A sequence begins with a request that says START and ends with one that says END, or when nothing came for `max_idle`. It gets the lowest free slot
of any instance; without one it waits in the backlog with all its requests. Which of an instance's sequences run together is the strategy's
business: `DirectStrategy` gives each slot its row in every batch, `OldestStrategy` lets a dynamic batcher choose.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, cast

from trivium.batching.dynamic import DynamicBatcher
from trivium.batching.scheduler import P
from trivium.batching.settings import SequenceSettings
from trivium.errors import InvalidRequest
from trivium.infer import CorrelationId

MakeNull = Callable[[P], P]
"""A request that fills the slot of a sequence without one: as the given one, but with the model told to ignore it."""


class LiveSequence(Generic[P]):
    """One live sequence. At most one of its requests is `current`: offered to the strategy, or running."""

    __slots__ = ("correlation_id", "current", "has_ended", "instance", "last_ns", "must_start", "slot", "state", "waiting")

    def __init__(self, correlation_id: CorrelationId, now_ns: int) -> None:
        self.correlation_id = correlation_id
        self.waiting: deque[P] = deque()
        self.current: P | None = None
        self.must_start = False
        """Its START was withdrawn before it ran: the next request starts it."""
        self.has_ended = False
        """Its END has come: no other request will."""
        self.instance = -1
        self.slot = -1
        """-1: in the backlog."""
        self.last_ns = now_ns
        self.state: Any = None
        """Whoever keeps the model's state keeps it here."""

    @property
    def is_idle(self) -> bool:
        return self.current is None and not self.waiting


class SequenceBatcher(Generic[P]):
    """See `BatchScheduler`."""

    def __init__(self, settings: SequenceSettings, *, model: str, num_instances: int, make_null: MakeNull[P]) -> None:
        self._model = model
        self._max_idle_ns = settings.max_idle_ns
        self._is_iterative = settings.is_iterative
        self._live: OrderedDict[object, LiveSequence[P]] = OrderedDict()
        """By correlation id, the one that was used least recently first. A sequence leaves when its END comes."""
        self._backlog: deque[LiveSequence[P]] = deque()
        self._slots: list[list[LiveSequence[P] | None]] = [[None] * settings.num_slots for _ in range(num_instances)]
        self._size = 0
        self._own_ids = count(1)
        self._strategies: list[DirectStrategy[P] | OldestStrategy[P]] = [
            DirectStrategy(settings, slots, make_null) if settings.batches is None else OldestStrategy(settings) for slots in self._slots
        ]

    def __len__(self) -> int:
        return self._size

    def add(self, pending: P, now_ns: int) -> None:
        if self._is_iterative:
            pending.sequence_start = pending.sequence_end = True
            pending.correlation_id = pending.correlation_id or next(self._own_ids)
            key: object = pending
        else:
            self._check(pending)
            key = pending.correlation_id
        self._end_idle(now_ns)
        sequence = self._live.get(key)
        if sequence is None:
            if not pending.sequence_start:
                raise InvalidRequest(
                    f"inference request for sequence {pending.correlation_id} to model '{self._model}' must specify the START flag on the first "
                    "request of the sequence"
                )
            sequence = self._live[key] = LiveSequence(pending.correlation_id, now_ns)
            self._place(sequence)
        sequence.last_ns = now_ns
        self._live.move_to_end(key)
        if pending.sequence_end:
            sequence.has_ended = True
            del self._live[key]
        pending.place = sequence
        pending.is_queued = True
        self._size += 1
        sequence.waiting.append(pending)
        self._offer_next(sequence, now_ns)

    def remove(self, pending: P) -> None:
        sequence = sequence_of(pending)
        self._size -= 1
        if pending.sequence_start:
            sequence.must_start = True
        is_rescheduled = bool(sequence.waiting) and sequence.waiting[0] is pending
        if sequence.current is pending and not is_rescheduled:
            self._strategies[sequence.instance].withdraw(pending)
            sequence.current = None
            pending.is_queued = False
            self._offer_next(sequence, pending.arrival_ns)
        else:
            sequence.waiting.remove(pending)
            pending.is_queued = False
        self._free_if_over(sequence, pending.arrival_ns)

    def is_ready(self, instance: int, now_ns: int) -> bool:
        return self._strategies[instance].is_ready(now_ns)

    def take(self, instance: int, now_ns: int) -> list[P]:
        batch = self._strategies[instance].take(now_ns)
        self._size -= sum(1 for pending in batch if pending.place is not None)
        return batch

    def finish(self, instance: int, batch: list[P], now_ns: int) -> None:
        for pending in batch:
            if pending.place is None:
                continue
            sequence = sequence_of(pending)
            sequence.current = None
            sequence.last_ns = now_ns
            self._offer_next(sequence, now_ns)
            self._free_if_over(sequence, now_ns)

    def reschedule(self, pending: P) -> None:
        sequence = sequence_of(pending)
        pending.sequence_start = False
        pending.is_queued = True
        self._size += 1
        sequence.waiting.appendleft(pending)

    def clear(self) -> list[P]:
        sequences = dict.fromkeys([*self._backlog, *(found for slots in self._slots for found in slots if found is not None)])
        waiting = [
            pending for sequence in sequences for pending in (sequence.current, *sequence.waiting) if pending is not None and pending.is_queued
        ]
        for pending in waiting:
            self.remove(pending)
        return waiting

    def expire(self, now_ns: int) -> list[P]:
        """Requests of sequences wait as long as it takes; idle sequences end."""
        self._end_idle(now_ns)
        return []

    def next_event_ns(self, now_ns: int) -> int:
        times = [time_ns for strategy in self._strategies if (time_ns := strategy.next_event_ns()) > now_ns]
        if self._backlog and self._live:
            times.append(max(next(iter(self._live.values())).last_ns + self._max_idle_ns, now_ns + 1))
        return min(times, default=0)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _check(self, pending: P) -> None:
        if not pending.correlation_id:
            raise InvalidRequest(f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID")
        if pending.batch_size > 1:
            raise InvalidRequest(f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher")

    def _place(self, sequence: LiveSequence[P]) -> None:
        free = [(slots.index(None), instance) for instance, slots in enumerate(self._slots) if None in slots]
        if not free:
            self._backlog.append(sequence)
            return
        sequence.slot, sequence.instance = min(free)
        self._slots[sequence.instance][sequence.slot] = sequence

    def _offer_next(self, sequence: LiveSequence[P], now_ns: int) -> None:
        if sequence.current is not None or sequence.slot < 0 or not sequence.waiting:
            return
        pending = sequence.waiting.popleft()
        if sequence.must_start:
            sequence.must_start = False
            pending.sequence_start = True
        sequence.current = pending
        self._strategies[sequence.instance].offer(pending, now_ns)

    def _free_if_over(self, sequence: LiveSequence[P], now_ns: int) -> None:
        if sequence.has_ended and sequence.is_idle:
            self._free(sequence, now_ns)

    def _free(self, sequence: LiveSequence[P], now_ns: int) -> None:
        if sequence.slot < 0:
            self._backlog.remove(sequence)
            return
        instance, slot = sequence.instance, sequence.slot
        sequence.slot = -1
        following = self._backlog.popleft() if self._backlog else None
        self._slots[instance][slot] = following
        if following is not None:
            following.instance, following.slot = instance, slot
            self._offer_next(following, now_ns)

    def _end_idle(self, now_ns: int) -> None:
        while self._live:
            key, sequence = next(iter(self._live.items()))
            if sequence.last_ns + self._max_idle_ns > now_ns:
                return
            if sequence.is_idle:
                del self._live[key]
                self._free(sequence, now_ns)
            else:
                sequence.last_ns = now_ns
                self._live.move_to_end(key)


class DirectStrategy(Generic[P]):
    """Slot n is row n of every batch; a slot below the last one in use that has nothing to run gets a null request.

    A batch runs once enough slots have a request, or the first of them has waited for the delay.
    """

    def __init__(self, settings: SequenceSettings, slots: list[LiveSequence[P] | None], make_null: MakeNull[P]) -> None:
        self._slots = slots
        self._make_null = make_null
        self._max_delay_ns = settings.max_delay_ns
        self._min_ready = settings.min_utilization * settings.num_slots
        self._offered: dict[P, None] = {}

    def offer(self, pending: P, now_ns: int) -> None:
        self._offered[pending] = None

    def withdraw(self, pending: P) -> None:
        del self._offered[pending]

    def is_ready(self, now_ns: int) -> bool:
        if not self._offered:
            return False
        if not self._max_delay_ns or len(self._offered) >= self._min_ready:
            return True
        return now_ns >= self._oldest_ns() + self._max_delay_ns

    def take(self, now_ns: int) -> list[P]:
        if not self.is_ready(now_ns):
            return []
        first = min(self._offered, key=lambda pending: pending.arrival_ns)
        rows = [self._row(sequence, first) for sequence in self._slots]
        while rows[-1] is None:
            rows.pop()
        for pending in rows:
            if pending is not None:
                del self._offered[pending]
                pending.is_queued = False
        return [self._make_null(first) if pending is None else pending for pending in rows]

    def next_event_ns(self) -> int:
        return self._oldest_ns() + self._max_delay_ns if self._offered and self._max_delay_ns else 0

    def _oldest_ns(self) -> int:
        return min(pending.arrival_ns for pending in self._offered)

    def _row(self, sequence: LiveSequence[P] | None, first: P) -> P | None:
        pending = None if sequence is None else sequence.current
        if pending is None or pending not in self._offered or pending.shape_key != first.shape_key:
            return None
        return pending


class OldestStrategy(Generic[P]):
    """The next request of each of the instance's sequences goes through a dynamic batcher."""

    def __init__(self, settings: SequenceSettings) -> None:
        assert settings.batches is not None
        self._batcher: DynamicBatcher[P] = DynamicBatcher(settings.batches)

    def offer(self, pending: P, now_ns: int) -> None:
        self._batcher.add(pending, now_ns)

    def withdraw(self, pending: P) -> None:
        self._batcher.remove(pending)

    def is_ready(self, now_ns: int) -> bool:
        return self._batcher.is_ready(0, now_ns)

    def take(self, now_ns: int) -> list[P]:
        return self._batcher.take(0, now_ns)

    def next_event_ns(self) -> int:
        return self._batcher.next_event_ns(0)


def sequence_of(pending: P) -> LiveSequence[P]:
    """The sequence that `pending`, a request of a `SequenceBatcher`, belongs to."""
    assert isinstance(pending.place, LiveSequence)
    return cast("LiveSequence[P]", pending.place)

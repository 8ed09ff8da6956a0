"""The waiting line of one model: priority levels, a limit on each, and requests whose time runs out.

Within a level the order is arrival; a request that is late under DELAY goes to the level's second line, behind all that are in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from trivium.batching.pending import Pending
from trivium.batching.settings import MICROSECOND_NS, BatchSettings, QueuePolicy
from trivium.errors import Overloaded

P = TypeVar("P", bound=Pending)


class _Level(Generic[P]):
    __slots__ = ("delayed", "policy", "size", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: deque[P] = deque()
        self.delayed: deque[P] = deque()
        self.size = 0
        """Without the entries of either line that have left (`is_queued` is false): those stay until they come first."""


class PolicyQueue(Generic[P]):
    """Leaving from the middle costs nothing: the entry is passed over later. `version` changes with everything but an append at the end."""

    def __init__(self, settings: BatchSettings) -> None:
        self._default_level = settings.default_level
        levels = range(1, settings.priority_levels + 1) if settings.priority_levels else (0,)
        self._levels: dict[int, _Level[P]] = {level: _Level(settings.level_policies.get(level, settings.policy)) for level in levels}
        self._in_order = tuple(self._levels.values())
        self._deadlines: list[tuple[int, int, P]] = []
        self._ticket = count()
        self._size = 0
        self.version = 0

    def __len__(self) -> int:
        return self._size

    def append(self, pending: P) -> None:
        """A priority that the model doesn't have means its default level. Raises `Overloaded` if the level is full."""
        level_id = pending.priority if pending.priority in self._levels else self._default_level
        level = self._levels[level_id]
        policy = level.policy
        if policy.max_size and level.size >= policy.max_size:
            raise Overloaded("Exceeds maximum queue size")
        pending.level = level_id
        pending.is_queued = True
        level.waiting.append(pending)
        level.size += 1
        self._size += 1
        if level is not self._in_order[-1] or level.delayed:
            self.version += 1
        timeout_us = policy.timeout_us
        if policy.allows_override and pending.timeout_us:
            timeout_us = min(timeout_us, pending.timeout_us) if timeout_us else pending.timeout_us
        if timeout_us:
            pending.deadline_ns = pending.arrival_ns + timeout_us * MICROSECOND_NS
            heappush(self._deadlines, (pending.deadline_ns, next(self._ticket), pending))

    def remove(self, pending: P) -> None:
        assert pending.is_queued
        level = self._levels[pending.level]
        pending.is_queued = False
        level.size -= 1
        self._size -= 1
        self.version += 1
        for line in (level.waiting, level.delayed):
            if len(line) > 2 * level.size + 8:
                kept = [entry for entry in line if entry.is_queued]
                line.clear()
                line.extend(kept)

    def __iter__(self) -> Iterator[P]:
        """In the order in which they are served. The queue must not change meanwhile."""
        for level in self._in_order:
            for line in (level.waiting, level.delayed):
                while line and not line[0].is_queued:
                    line.popleft()
                for pending in line:
                    if pending.is_queued:
                        yield pending

    def pop_batch(self, num: int) -> list[P]:
        """The first `num` requests in order."""
        taken: list[P] = []
        for level in self._in_order:
            for line in (level.waiting, level.delayed):
                while line and len(taken) < num:
                    pending = line.popleft()
                    if pending.is_queued:
                        pending.is_queued = False
                        level.size -= 1
                        taken.append(pending)
        assert len(taken) == num
        self._size -= num
        self.version += 1
        return taken

    def expire(self, now_ns: int) -> list[P]:
        """Takes out those whose time is over and who may not wait longer; moves the others to their second line."""
        rejected: list[P] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, _, pending = heappop(self._deadlines)
            if not pending.is_queued:
                continue
            level = self._levels[pending.level]
            if level.policy.delays_late:
                level.waiting.remove(pending)
                level.delayed.append(pending)
                self.version += 1
            else:
                self.remove(pending)
                rejected.append(pending)
        return rejected

    def next_deadline_ns(self) -> int:
        """When the next waiting request's time is over; 0: never."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].is_queued:
            heappop(deadlines)
        if len(deadlines) > 2 * self._size + 8:
            self._deadlines = deadlines = [entry for entry in deadlines if entry[2].is_queued]
            heapify(deadlines)
        return deadlines[0][0] if deadlines else 0

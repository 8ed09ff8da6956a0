"""`FairQueue`: whose turn it is. Requests wait here, not in the engine, as long as the engine has enough to do.

The next turn goes to the client with the fewest sequences in the engine, and among those to the one that has waited longest: clients that want
more than their share get equal shares of the engine's rows, whatever the lengths of their answers, and one that comes anew goes next. A turn is given
whenever any row is free, however many a request needs, so that a large request never keeps small ones waiting; the engine takes the surplus.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

from trivium.backends.base import GenerateEvent, Generation
from trivium.errors import TriviumError


class Turn:
    """One request's place. `leave` gives it back, whether it came to its turn or not."""

    __slots__ = ("_queue", "client", "granted", "has_started", "is_running", "is_waiting", "num_sequences", "number")

    def __init__(self, queue: FairQueue, client: str, num_sequences: int, number: int) -> None:
        self._queue = queue
        self.client = client
        self.num_sequences = num_sequences
        self.number = number
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the turn has come; `fail` gives it an exception."""
        self.is_waiting = True
        self.is_running = False
        self.has_started = False

    def fail(self, error: TriviumError) -> None:
        """Raise `error` in whoever waits; nothing, once the turn has come."""
        if self.is_waiting and not self.granted.done():
            self._queue.drop(self)
            self.granted.set_exception(error)

    def start(self) -> None:
        """The engine has begun with it."""
        self._queue.on_started(self)

    def leave(self) -> None:
        if self.is_running:
            self._queue.on_finished(self)
        elif self.is_waiting:
            self._queue.drop(self)
            self.granted.cancel()


class FairQueue:
    """The waiting requests of one model. `on_change` is called with the number of sequences that wait, whenever that changes."""

    def __init__(self, max_num_seqs: int, on_change: Callable[[int], None] | None = None) -> None:
        self._max_running = max_num_seqs + max(1, max_num_seqs // 16)
        """A few more than run at once: a row that becomes free is taken in the next step, not when we hear of it."""
        self._max_unstarted = max(16, max_num_seqs // 4)
        """Where the KV cache is what is short, more would only wait in the engine, in the order they came."""
        self._on_change = on_change or _ignore
        self._numbers = itertools.count()
        self._waiting: dict[str, deque[Turn]] = {}
        self._running: dict[str, int] = {}
        self._num_waiting = 0
        self._num_running = 0
        self._num_unstarted = 0

    @property
    def num_waiting(self) -> int:
        """Sequences."""
        return self._num_waiting

    def enter(self, client: str, num_sequences: int) -> Turn:
        turn = Turn(self, client, num_sequences, next(self._numbers))
        self._waiting.setdefault(client, deque()).append(turn)
        self._num_waiting += num_sequences
        self._give_turns()
        return turn

    def drop(self, turn: Turn) -> None:
        """It waits no longer."""
        turn.is_waiting = False
        turns = self._waiting[turn.client]
        turns.remove(turn)
        if not turns:
            del self._waiting[turn.client]
        self._num_waiting -= turn.num_sequences
        self._on_change(self._num_waiting)

    def on_started(self, turn: Turn) -> None:
        if not turn.has_started:
            turn.has_started = True
            self._num_unstarted -= turn.num_sequences
            self._give_turns()

    def on_finished(self, turn: Turn) -> None:
        if not turn.has_started:
            self._num_unstarted -= turn.num_sequences
        self._num_running -= turn.num_sequences
        left = self._running[turn.client] - turn.num_sequences
        if left:
            self._running[turn.client] = left
        else:
            del self._running[turn.client]
        turn.is_running = False
        self._give_turns()

    def _give_turns(self) -> None:
        while self._waiting and self._num_running < self._max_running and self._num_unstarted < self._max_unstarted:
            client = min(self._waiting, key=self._precedence)
            turns = self._waiting[client]
            turn = turns.popleft()
            if not turns:
                del self._waiting[client]
            self._num_waiting -= turn.num_sequences
            self._num_running += turn.num_sequences
            self._num_unstarted += turn.num_sequences
            self._running[client] = self._running.get(client, 0) + turn.num_sequences
            turn.is_waiting, turn.is_running = False, True
            if not turn.granted.done():  # else whoever waited was cancelled, and will leave
                turn.granted.set_result(None)
        self._on_change(self._num_waiting)

    def _precedence(self, client: str) -> tuple[int, int]:
        return self._running.get(client, 0), self._waiting[client][0].number


class QueuedGeneration:
    """A `Generation` that waits for its turn between its checks and its first event.

    `timeout`, seconds and what to raise after them, bounds the wait.
    """

    def __init__(
        self, inner: Generation, queue: FairQueue, client: str, num_sequences: int, timeout: tuple[float, Callable[[], TriviumError]] | None
    ) -> None:
        self._inner = inner
        self._queue = queue
        self._client = client
        self._num_sequences = num_sequences
        self._timeout = timeout
        self._turn: Turn | None = None
        self._is_told = False
        self._failure: TriviumError | None = None
        inner.add_done_callback(self._leave)

    async def start(self) -> None:
        await self._inner.start()

    def __aiter__(self) -> QueuedGeneration:
        return self

    async def __anext__(self) -> GenerateEvent:
        if self._turn is None:
            await self._inner.start()
            await self._wait()
        event = await self._inner.__anext__()
        if not self._is_told:
            self._is_told = True
            assert self._turn is not None
            self._turn.start()
        return event

    async def aclose(self) -> None:
        await self._inner.aclose()

    def fail(self, error: TriviumError) -> None:
        if self._failure is None:
            self._failure = error
            if self._turn is not None:
                self._turn.fail(error)
            self._inner.fail(error)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._inner.add_done_callback(callback)

    async def _wait(self) -> None:
        if self._failure is not None:
            return  # the inner generation raises it
        turn = self._turn = self._queue.enter(self._client, self._num_sequences)
        if turn.granted.done():
            return
        timer = None
        if self._timeout is not None:
            seconds, error = self._timeout
            timer = asyncio.get_running_loop().call_later(seconds, lambda: turn.fail(error()))
        try:
            await turn.granted
        except BaseException:
            await self._inner.aclose()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _leave(self) -> None:
        if self._turn is not None:
            self._turn.leave()


def _ignore(num_waiting: int) -> None:
    pass

"""The engine's loop: receive, schedule, launch, take the previous step's result, reply.

One step is always in flight (`pipeline_depth` 1): step N+1 is scheduled and launched before step N's tokens have been read, so the device
never waits for the host. Depth 0 is the same loop that reads each step before it schedules the next.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from trivium.engine.executor import Executor, StepHandle
from trivium.engine.grammar_compiler import Compiled
from trivium.engine.grammar_gate import GrammarGate
from trivium.errors import InternalError, TriviumError
from trivium.protocol.messages import (
    Abort,
    AddRequest,
    EngineStats,
    FromEngine,
    Hello,
    Probe,
    ProbeReply,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToEngine,
    TokenOutput,
    refusal,
)
from trivium.scheduling.scheduler import Scheduler
from trivium.types import FinishReason

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 0.1


class Mailbox(Protocol):
    """Where messages come from and go to; `client` names one of the peers."""

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        """All waiting messages in order; with `block` at least one."""
        ...

    def send(self, client: bytes, message: FromEngine) -> None: ...


class EngineCore:
    """Owns the scheduler and the executor of one model. Not thread-safe: one thread runs it."""

    def __init__(self, scheduler: Scheduler, executor: Executor, mailbox: Mailbox, *, pipeline_depth: int, greeting: FromEngine) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.mailbox = mailbox
        self.pipeline_depth = pipeline_depth
        self.greeting = greeting
        self.grammars: GrammarGate | None = None
        """Where requests wait for their grammar."""
        self.is_running = True
        self._in_flight: deque[StepHandle] = deque()
        self._owners: dict[str, bytes] = {}
        self._clients: list[bytes] = []
        self._stats_sent_at = 0.0
        self._was_busy = False
        self._handlers: dict[type[ToEngine], Callable[[bytes, ToEngine], None]] = {
            Hello: self._on_hello,
            AddRequest: self._on_add,
            Abort: self._on_abort,
            Probe: self._on_probe,
            ResetPrefixCache: self._on_reset_prefix_cache,
            Shutdown: self._on_shutdown,
        }

    @property
    def is_busy(self) -> bool:
        return bool(self._in_flight) or self.scheduler.has_work

    def add_client(self, client: bytes) -> None:
        """Outputs and reports go to every client that said hello."""
        if client not in self._clients:
            self._clients.append(client)

    def run(self) -> None:
        """Until `Shutdown`; blocks without spinning while there is nothing to do."""
        while self.is_running:
            busy = self.is_busy
            if not busy:
                self._settle()
            for client, message in self.mailbox.receive(block=not busy):
                self._handlers[type(message)](client, message)
            if self.grammars is not None and self.grammars.waiting:
                for client, message, grammar in self.grammars.take_ready():
                    self._add(client, message, grammar)
            if self.is_busy:
                self.step()

    def step(self) -> None:
        """Launch the next step, then take in the oldest result that is due."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self._in_flight.append(self.executor.submit(plan))
        if self._in_flight and (plan is None or len(self._in_flight) > self.pipeline_depth):
            self._was_busy = True
            self._reply(self.scheduler.update(self._in_flight.popleft().result()))

    def _settle(self) -> None:
        if self._was_busy:
            self._was_busy = False
            self.scheduler.check_integrity()
            for client in self._clients:
                self.mailbox.send(client, StepOutputs(outputs=[], stats=self._stats()))

    def _stats(self) -> EngineStats:
        stats = self.scheduler.stats()
        stats.num_waiting += 0 if self.grammars is None else len(self.grammars.waiting)
        self._stats_sent_at = time.monotonic()
        return stats

    def _reply(self, outputs: list[TokenOutput]) -> None:
        if not outputs:
            return
        stats = self._stats() if time.monotonic() - self._stats_sent_at >= STATS_INTERVAL_S else None
        if len(self._clients) == 1:
            self.mailbox.send(self._clients[0], StepOutputs(outputs=outputs, stats=stats))
        else:
            by_client: dict[bytes, list[TokenOutput]] = {}
            for output in outputs:
                by_client.setdefault(self._owners[output.request_id], []).append(output)
            for client, own in by_client.items():
                self.mailbox.send(client, StepOutputs(outputs=own, stats=stats))
        for output in outputs:
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                if self.grammars is not None:
                    self.grammars.forget(output.request_id)

    def _on_hello(self, client: bytes, message: ToEngine) -> None:
        self.add_client(client)
        self.mailbox.send(client, self.greeting)

    def _on_add(self, client: bytes, message: ToEngine) -> None:
        assert isinstance(message, AddRequest)
        self._add(client, message)

    def _add(self, client: bytes, message: AddRequest, grammar: Compiled | None = None) -> None:
        """`grammar`: the request's, once it has waited for it."""
        try:
            if grammar is not None:
                grammar.result()
            elif self.grammars is not None and self.grammars.hold(client, message):
                return
            self.scheduler.add(message)
        except Exception as error:  # whatever a request makes go wrong ends that request alone
            if not isinstance(error, TriviumError):
                logger.exception("request %s could not be added", message.request_id)
                error = InternalError(f"The request could not be added: {type(error).__name__}.")
            self.mailbox.send(client, refusal(message.request_id, error))
            if self.grammars is not None:
                self.grammars.forget(message.request_id)
            return
        self._owners[message.request_id] = client

    def _on_abort(self, client: bytes, message: ToEngine) -> None:
        assert isinstance(message, Abort)
        self._was_busy = True
        self._abort(message.request_ids)

    def _on_probe(self, client: bytes, message: ToEngine) -> None:
        assert isinstance(message, Probe)
        self.mailbox.send(client, ProbeReply(nonce=message.nonce, stats=self._stats()))

    def _on_reset_prefix_cache(self, client: bytes, message: ToEngine) -> None:
        self.scheduler.reset_prefix_cache()

    def _on_shutdown(self, client: bytes, message: ToEngine) -> None:
        self._abort([*self._owners, *(self.grammars.waiting if self.grammars is not None else ())])
        self.is_running = False

    def _abort(self, request_ids: list[str]) -> None:
        for client, message, _ in self.grammars.drop(request_ids) if self.grammars is not None else ():
            self.mailbox.send(client, StepOutputs([TokenOutput(request_id=message.request_id, finish_reason=FinishReason.ABORT)]))
        self._reply(self.scheduler.abort(request_ids))

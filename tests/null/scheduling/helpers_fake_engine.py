"""The engine's loop around scheduler and fake runner, for tests: same order of calls, any number of steps in flight."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from helpers_fake_runner import FakeRunner

from trivium.protocol.messages import AddRequest, TokenLogprobs, TokenOutput
from trivium.scheduling import Scheduler, SchedulerLimits, StepPlan, StepResult
from trivium.types import SamplingParams


def make_limits(**changes: Any) -> SchedulerLimits:
    """A small cache of 63 usable blocks of 4 tokens; no watermark."""
    defaults: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 200,
        "num_blocks": 64,
        "block_size": 4,
        "watermark": 0.0,
    }
    return SchedulerLimits(**(defaults | changes))


def make_add(request_id: str, prompt: list[int], *, max_tokens: int = 8, **changes: Any) -> AddRequest:
    """Fields of `AddRequest` go there, all others to `SamplingParams`."""
    own = {name: changes.pop(name) for name in AddRequest.__struct_fields__ if name in changes}
    params = SamplingParams(max_tokens=max_tokens, **changes)
    return AddRequest(request_id=request_id, prompt_token_ids=prompt, params=params, max_tokens=max_tokens, **own)


@dataclass
class Received:
    """What a client has got for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    scheduled_at: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    last: TokenOutput | None = None

    @property
    def finish_reason(self) -> str | None:
        return self.last.finish_reason if self.last else None

    def take(self, output: TokenOutput) -> None:
        assert self.last is None, "an output after the last one"
        if output.prompt_logprobs is not None or output.num_cached_tokens:
            assert not self.tokens, "these come with the first token"
            assert output.token_ids
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.num_cached_tokens += output.num_cached_tokens
        self.tokens += output.token_ids
        self.logprobs += output.logprobs or []
        if output.scheduled_at:
            self.scheduled_at.append(output.scheduled_at)
        if output.finish_reason is not None:
            self.last = output


class Clock:
    """Each reading is one later than the one before."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class FakeEngine:
    """`depth` steps stay in flight beyond the one whose result is awaited. A runner's step has run when `run` returns, as on a stream."""

    def __init__(self, limits: SchedulerLimits, *, depth: int = 0, vocab_size: int = 1000, is_checking: bool = True) -> None:
        self.scheduler = Scheduler(limits, clock=Clock())
        self.runner = FakeRunner(limits, vocab_size=vocab_size)
        self.depth = depth
        self.is_checking = is_checking
        self.results: deque[StepResult] = deque()
        self.received: dict[str, Received] = {}
        self.plans: list[StepPlan] = []

    def add(self, request_id: str, prompt: list[int], **changes: Any) -> None:
        message = make_add(request_id, prompt, **changes)
        self.scheduler.add(message)
        self.runner.salts[request_id] = message.cache_salt
        self.received[request_id] = Received()

    def abort(self, *request_ids: str) -> None:
        self._take(self.scheduler.abort(list(request_ids)))

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.results.append(self.runner.run(plan))
        self._check()
        return plan

    def update(self) -> None:
        self._take(self.scheduler.update(self.results.popleft()))

    def step(self) -> StepPlan | None:
        """One turn of the loop."""
        plan = self.schedule()
        if self.results and (plan is None or len(self.results) > self.depth):
            self.update()
        else:
            assert plan is not None or not self.scheduler.has_work, "stuck: work, but nothing runs"
        return plan

    def drain(self, max_steps: int = 10_000) -> None:
        while self.scheduler.has_work:
            max_steps -= 1
            assert max_steps, "no end"
            self.step()
        self.check_idle()

    def check_idle(self) -> None:
        """Nothing is left of any request."""
        scheduler = self.scheduler
        scheduler.check_integrity(thorough=True)
        stats = scheduler.stats()
        assert stats.num_free_blocks == stats.num_blocks
        assert (stats.num_running, stats.num_waiting, scheduler.num_in_flight) == (0, 0, 0)
        assert all(received.last is not None for received in self.received.values())

    def _take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            self.received[output.request_id].take(output)
        self._check()

    def _check(self) -> None:
        if self.is_checking:
            self.scheduler.check_integrity(thorough=True)

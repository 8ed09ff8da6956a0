"""`LLMGeneration`: one request on its way through an engine, read as an async iterator of events."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from trivium.backends.base import GenerateEvent
from trivium.backends.llm_choice import Choice, logprobs_dict
from trivium.backends.llm_feed import Feed, create_feed
from trivium.backends.llm_prompt import Prompt
from trivium.client.protocol import EngineClientProtocol
from trivium.errors import ERRORS_BY_SLUG, GenerationFailed, RequestCancelled, TriviumError
from trivium.metrics.sequence import ModelMetrics
from trivium.protocol.messages import AddRequest, TokenOutput
from trivium.text import Tokenizer
from trivium.types import FinishReason, GenerateRequest, PromptInfo, TokenEvent

T = TypeVar("T")


class Plan:
    """A request that passed every check: what to submit and how to read the answers."""

    def __init__(self, prompt: Prompt, additions: list[AddRequest], choices: list[Choice], *, num_copies: int = 1) -> None:
        assert len(additions) == len(choices)
        assert num_copies == 1 or len(choices) == 1
        self.prompt = prompt
        self.additions = additions
        self.choices = choices
        self.num_copies = num_copies
        """How many choices show the one sequence: greedy choices are equal, so one is computed."""


class LLMGeneration:
    """See `backends.base.Generation`. `prepare` makes the plan; it raises what is wrong with the request."""

    def __init__(
        self,
        request: GenerateRequest,
        engine: EngineClientProtocol,
        tokenizer: Tokenizer | None,
        metrics: ModelMetrics,
        prepare: Callable[[GenerateRequest], Coroutine[Any, Any, Plan]],
    ) -> None:
        self._request = request
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._prepare = prepare
        self._plan: Plan | None = None
        self._feed: Feed | None = None
        self._ready: deque[GenerateEvent] = deque()
        self._has_prompt_info = False
        self._num_open = 0
        self._failure: TriviumError | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._is_done = False

    # -- the iterator -------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._plan is not None or self._is_done:
            return
        begin = time.monotonic()
        try:
            self._plan = plan = await self._interruptible(self._prepare(self._request))
        except BaseException:
            self._finish()
            raise
        self._metrics.validation_time.observe(time.monotonic() - begin)
        self._num_open = len(plan.choices)
        self._feed = create_feed(plan.choices, [self._engine.submit(addition) for addition in plan.additions])
        self._metrics.request_params_n.observe(self._request.n)
        self._metrics.request_params_max_tokens.observe(plan.additions[0].max_tokens)

    def __aiter__(self) -> LLMGeneration:
        return self

    async def __anext__(self) -> GenerateEvent:
        while True:
            if self._ready and self._has_prompt_info:
                return self._ready.popleft()
            if self._is_done:
                raise StopAsyncIteration
            await self.start()
            assert self._feed is not None
            try:
                choice, output = await self._interruptible(self._feed.get())
                await self._consume(choice, output)
            except BaseException as error:
                await self._abandon(error)
                raise

    async def aclose(self) -> None:
        if not self._is_done:
            await self._abandon(RequestCancelled("The request was closed."))
        self._ready.clear()

    def fail(self, error: TriviumError) -> None:
        if self._is_done or self._failure is not None:
            return
        self._failure = error
        if self._waiting is not None:
            # As asyncio.timeout does it: cancel the task where it waits, and turn that into `error` there.
            self._waiting.cancel()
        elif self._plan is not None:
            self._engine.abort([choice.request_id for choice in self._plan.choices if not choice.is_finished])

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    async def _interruptible(self, waited: Coroutine[Any, Any, T]) -> T:
        """`waited`, unless `fail` is called before or meanwhile."""
        if self._failure is not None:
            waited.close()
            raise self._failure
        task = self._waiting = asyncio.current_task()
        assert task is not None
        num_cancels = task.cancelling()
        try:
            return await waited
        except asyncio.CancelledError:
            if self._failure is not None and task.uncancel() <= num_cancels:
                raise self._failure from None
            raise
        finally:
            self._waiting = None

    async def _consume(self, choice: Choice, output: TokenOutput) -> None:
        now = time.monotonic()
        if output.error_slug is not None:
            error = ERRORS_BY_SLUG.get(output.error_slug, GenerationFailed)
            raise error(output.error_message or "The engine could not go on with this request.")
        event = choice.consume(output, now)
        if event is None:
            return
        if not self._has_prompt_info:
            self._add_prompt_info(choice, output)
        self._add_event(event)
        if event.finish_reason is not None:
            self._num_open -= 1
            self._observe_finish(choice, event.finish_reason, now)
            assert self._feed is not None
            await self._feed.stop(choice)
            if self._num_open == 0:
                self._observe_longest()
                self._finish()

    def _add_prompt_info(self, choice: Choice, output: TokenOutput) -> None:
        """With prompt logprobs, which only the first sequence brings, the events of the others are held back until it has them."""
        assert self._plan is not None
        if self._request.params.prompt_logprobs is not None and choice.index != 0:
            return
        entries = output.prompt_logprobs
        logprobs = None if entries is None else [None if entry is None else logprobs_dict(entry, self._tokenizer) for entry in entries]
        prompt = self._plan.prompt
        info = PromptInfo(prompt=prompt.text, prompt_token_ids=prompt.token_ids, prompt_logprobs=logprobs)
        info.num_cached_tokens = output.num_cached_tokens
        info.scheduled_at = choice.clock.scheduled_at
        self._ready.appendleft(info)
        self._has_prompt_info = True

    def _add_event(self, event: TokenEvent) -> None:
        assert self._plan is not None
        self._ready.append(event)
        for index in range(1, self._plan.num_copies):
            self._ready.append(msgspec.structs.replace(event, index=index))

    async def _abandon(self, error: BaseException) -> None:
        """The end before the end: nothing of this request stays in the engine."""
        if self._is_done:
            return
        reason = FinishReason.ABORT if isinstance(error, RequestCancelled | asyncio.CancelledError) else FinishReason.ERROR
        now = time.monotonic()
        if self._plan is not None:
            for choice in self._plan.choices:
                if not choice.is_finished:
                    self._observe_finish(choice, reason, now)
        self._finish()
        if self._feed is not None:
            await self._feed.close()

    def _observe_finish(self, choice: Choice, reason: FinishReason, now: float) -> None:
        assert self._plan is not None
        choice.clock.on_finish(
            reason,
            now=now,
            num_prompt_tokens=len(self._plan.prompt.token_ids),
            num_cached_tokens=choice.num_cached_tokens,
            num_preemptions=choice.num_preemptions,
        )

    def _observe_longest(self) -> None:
        assert self._plan is not None
        self._metrics.request_max_generation_tokens.observe(max(choice.clock.num_tokens for choice in self._plan.choices))

    def _finish(self) -> None:
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

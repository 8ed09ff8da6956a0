"""The engine's decisions: who computes how many tokens in the next step, in which row and which blocks.

There are no phases. A request has tokens that are known and tokens that are computed; each step hands out tokens within one budget so that
computed catches up with known. A prompt in chunks, a prefix hit, a decode step, the new start after a preemption: all are that one rule.

Policy of a step:

1. Running requests first. Those that decode get their one token, in queue order; one that needs a block when there is none preempts the last
   of the running ones in queue order (perhaps itself), which loses its blocks and its row and waits again. Then unfinished prompts go on. While
   others decode, a step takes no more than a share of the prompt tokens that wait (`prompt_spread`): a few prompts that arrive lengthen several
   steps a little in place of one by much, and a long queue still gets whole steps.
2. Unless somebody was preempted, waiting requests start in queue order, while rows, budget and blocks last. A request gets the blocks of all
   its known tokens at once, and only if the watermark stays free; when nothing runs the watermark is ignored, so whoever is first in line
   always starts. Nobody overtakes.

Steps run in order, on one stream, and every plan that `schedule` returned must run. Therefore blocks and rows freed while a step is in flight
may be handed out to the next step at once: the earlier step's reads and writes are over when the later one's begin.

A lone request can outgrow neither the cache nor the rows: `add` bounds its length by what the cache holds (it then ends with `length`). With the
order above the first in line therefore always makes progress, and so does the queue.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import repeat

from trivium.errors import GenerationFailed, InvalidRequest, PromptTooLong
from trivium.protocol.messages import AddRequest, EngineStats, TokenLogprobs, TokenOutput
from trivium.scheduling.block_pool import BlockPool
from trivium.scheduling.limits import SchedulerLimits
from trivium.scheduling.plan_builder import Chunk, Flight, PlanBuilder
from trivium.scheduling.prefix_cache import PrefixCache
from trivium.scheduling.queue import RequestQueue
from trivium.scheduling.request import NO_ROW, Request, Status
from trivium.scheduling.step import StepPlan, StepResult
from trivium.types import FinishReason

MIN_PROMPT_SHARE = 512
"""Prompt tokens a step takes at least: fewer would take almost as long, since products of so few rows are bound by reading weights."""
MAX_STEP_SAMPLES = 4096
"""Step sizes kept for a report; older ones are dropped when nobody asks."""


def _sort_key(request: Request) -> tuple[int, int]:
    return request.sort_key


class Scheduler:
    """`schedule` and `update` alternate with any number of steps in between: N+1 may be scheduled before N's result is known.

    Not thread-safe. `clock` gives seconds for `TokenOutput.scheduled_at`.
    """

    def __init__(self, limits: SchedulerLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.cache = PrefixCache(self.pool, limits.block_size, enabled=limits.enable_prefix_caching)
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        """In queue order."""
        self._clock = clock
        self._requests: dict[str, Request] = {}
        """Unfinished ones by id."""
        self._free_rows = list(reversed(range(limits.max_num_seqs)))
        self._flights: deque[Flight] = deque()
        self._notices: list[TokenOutput] = []
        """Outputs without a token, for the next call that returns outputs."""
        self._has_finished = False
        """Whether `running` has finished requests in it."""
        self._num_arrived = 0
        self._num_steps = 0
        self._last_done = -1
        """Id of the last step whose result is in."""
        self._num_preemptions = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._step_tokens: deque[int] = deque(maxlen=MAX_STEP_SAMPLES)

    # --- requests come and go ---

    def add(self, message: AddRequest) -> None:
        """Queues a request. Raises `InvalidRequest` for one that could never run or whose id is taken."""
        if message.request_id in self._requests:
            raise InvalidRequest(f"Request id {message.request_id!r} is already in use.", param="request_id")
        num_prompt = len(message.prompt_token_ids)
        if not num_prompt:
            raise InvalidRequest("The prompt has no tokens.", param="prompt")
        if message.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {message.max_tokens}.", param="max_tokens")
        limits = self.limits
        if num_prompt >= limits.max_model_len:
            raise PromptTooLong(
                f"The prompt has {num_prompt} tokens, but prompt and output together are limited to {limits.max_model_len}.", param="prompt"
            )
        if num_prompt > limits.cache_tokens:
            raise PromptTooLong(f"The prompt has {num_prompt} tokens, but the KV cache holds only {limits.cache_tokens}.", param="prompt")
        # The last token is never fed back and needs no room in the cache.
        max_len = min(num_prompt + message.max_tokens, limits.max_model_len, limits.cache_tokens + 1)
        priority = message.priority if limits.policy == "priority" else 0
        request = Request(message, sort_key=(priority, self._num_arrived), max_len=max_len)
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.push(request)

    def abort(self, request_ids: Iterable[str]) -> list[TokenOutput]:
        """Ends requests now, whatever is in flight for them; ids that are unknown or finished are ignored."""
        outputs = self._take_notices()
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                output = TokenOutput(request_id=request_id)
                self._end(request, output, FinishReason.ABORT)
                outputs.append(output)
        self._drop_finished()
        return outputs

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a result is awaited."""
        return bool(self._requests or self._flights)

    @property
    def num_in_flight(self) -> int:
        """Steps whose result is awaited."""
        return len(self._flights)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached block that no request holds."""
        self.pool.forget_idle()

    # --- a step out ---

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nothing can run before another result is in."""
        builder = PlanBuilder(self._num_steps)
        budget = self.limits.max_num_batched_tokens
        prefills, has_preempted = self._schedule_decodes(builder)
        budget -= len(builder.rows)
        if builder.rows and self.limits.prompt_spread > 1:
            budget = min(budget, self._prompt_share(prefills))
        for request in prefills:
            budget -= self._schedule_chunk(builder, request, budget)
        if not has_preempted:
            self._admit(builder, budget)
        built = builder.build()
        if built is None:
            return None
        plan, flight = built
        self._flights.append(flight)
        self._num_steps += 1
        self._step_tokens.append(plan.total_tokens)
        return plan

    def _prompt_share(self, prefills: list[Request]) -> int:
        """Prompt tokens to compute in a step that others decode in."""
        backlog = sum(request.prefill_end - request.num_computed for request in prefills) + self.waiting.num_tokens()
        return max(MIN_PROMPT_SHARE, -(-backlog // self.limits.prompt_spread))

    def _schedule_decodes(self, builder: PlanBuilder) -> tuple[list[Request], bool]:
        """Gives every decoding request its token. Returns the requests still in their prompt and whether anybody was preempted.

        The hot loop: no calls and no objects per row, except every `block_size` tokens. The budget needs no look: whoever
        decodes had at least one token of the previous step's.
        """
        step_id = builder.step_id
        decodes, rows, num_computed = builder.decodes, builder.rows, builder.num_computed
        prefills: list[Request] = []
        num_preemptions = self._num_preemptions
        # Victims leave from the end of the list, never from before the current request, which the iteration allows.
        for request in self.running:
            position = request.num_computed
            if position < request.prefill_end:
                prefills.append(request)
                continue
            if position >= request.last_position:
                continue  # all tokens it may produce are in flight
            if position == request.capacity:
                if not self._grow(request):
                    break
                builder.grown.append((len(rows), request))
            request.num_computed = position + 1
            request.last_step = step_id
            decodes.append(request)
            rows.append(request.row)
            num_computed.append(position)
        return prefills, self._num_preemptions > num_preemptions

    def _grow(self, request: Request) -> bool:
        """Adds a block, preempting from the end of the line if need be. False if `request` itself had to go."""
        while not self.pool.num_free:
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
        self.cache.publish(request)
        request.block_ids += self.pool.allocate(1)
        request.capacity += self.limits.block_size
        return True

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self._num_preemptions += 1
        self.waiting.push(request)

    def _admit(self, builder: PlanBuilder, budget: int) -> None:
        while budget and self.waiting and self._free_rows:
            request = self.waiting.peek()
            if request.last_step > self._last_done:
                return  # preempted with a result in flight: what it will start over with is not known yet
            hits = self.cache.match(request)
            num_new = -(-len(request.token_ids) // self.limits.block_size) - len(hits)
            reserve = self.limits.watermark_blocks if self.running else 0
            if num_new + self.pool.num_idle(hits) + reserve > self.pool.num_free:
                return
            self._start(self.waiting.pop(), hits, num_new)
            budget -= self._schedule_chunk(builder, request, budget, is_new=True)

    def _start(self, request: Request, hits: list[int], num_new: int) -> None:
        # All hits are taken before any block is handed out, or a hit could be handed out as new.
        self.pool.touch(hits)
        request.block_ids = hits + self.pool.allocate(num_new)
        size = self.limits.block_size
        request.capacity = len(request.block_ids) * size
        request.num_published = len(hits)
        request.num_computed = len(hits) * size
        request.prefill_end = len(request.token_ids)
        request.row = self._free_rows.pop()
        request.status = Status.RUNNING
        insort(self.running, request, key=_sort_key)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed
            self.cache.count(request, request.num_computed)
        if request.wants_prompt_logprobs:
            request.prompt_logprobs = [None]
        if request.scheduled_at:
            self._notices.append(TokenOutput(request_id=request.request_id, scheduled_at=request.scheduled_at))
        request.scheduled_at = self._clock()
        request.has_news = True

    def _schedule_chunk(self, builder: PlanBuilder, request: Request, budget: int, *, is_new: bool = False) -> int:
        """Schedules as many known tokens as the budget allows; returns how many."""
        start = request.num_computed
        count = min(request.prefill_end - start, budget)
        threshold = self.limits.long_prefill_token_threshold
        if threshold and len(self._requests) > 1:
            count = min(count, threshold)
        if count:
            request.num_computed = start + count
            request.last_step = builder.step_id
            self.cache.publish(request)
            builder.chunks.append(Chunk(request, start, count, request.new_row() if is_new else None))
        return count

    # --- its result back ---

    def update(self, result: StepResult) -> list[TokenOutput]:
        """Takes the result of the oldest step in flight. Results of requests that ended meanwhile are dropped."""
        flight = self._flights.popleft()
        assert result.step_id == flight.step_id, f"result of step {result.step_id}, expected {flight.step_id}"
        assert len(result.token_ids) == len(flight.sampled), f"{len(result.token_ids)} tokens for {len(flight.sampled)} sampled rows"
        assert len(result.logprobs) in (0, len(flight.sampled))
        self._last_done = flight.step_id
        outputs = self._take_notices()
        if result.failed_rows:
            outputs += self._fail(flight, result.failed_rows)
        if result.prompt_logprobs:
            _collect_prompt_logprobs(flight, result.prompt_logprobs)
        num_others = len(outputs)
        finished = Status.FINISHED
        logprobs: Iterable[TokenLogprobs | None] = result.logprobs or repeat(None)
        for request, token_id, entry in zip(flight.sampled, result.token_ids, logprobs, strict=False):
            if request.status is finished:
                continue
            tokens = request.token_ids
            tokens.append(token_id)
            output = TokenOutput(request_id=request.request_id, token_ids=[token_id])
            if entry is not None:
                output.logprobs = [entry]
            if request.has_news:
                self._attach_news(request, output)
            if token_id in request.stop_ids or len(tokens) >= request.max_len:
                end = request.end_of(token_id)
                if end is not None:
                    self._end(request, output, *end)
            outputs.append(output)
        self._generation_tokens += len(outputs) - num_others
        self._drop_finished()
        return outputs

    def _attach_news(self, request: Request, output: TokenOutput) -> None:
        output.scheduled_at, request.scheduled_at = request.scheduled_at, 0.0
        if request.num_output_tokens == 1:
            self._prompt_tokens += request.num_prompt_tokens
            output.num_cached_tokens = request.num_cached_tokens or 0
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
            assert output.prompt_logprobs is None or len(output.prompt_logprobs) == request.num_prompt_tokens
        request.has_news = False

    def _fail(self, flight: Flight, failed_rows: dict[int, str]) -> list[TokenOutput]:
        outputs: list[TokenOutput] = []
        for row, request in zip(flight.rows, flight.requests, strict=True):
            if row not in failed_rows:
                continue
            self.cache.forget(request)
            if request.status is not Status.FINISHED:
                output = TokenOutput(request_id=request.request_id, error_slug=GenerationFailed.slug, error_message=failed_rows[row])
                self._end(request, output, FinishReason.ERROR)
                outputs.append(output)
        return outputs

    def _end(self, request: Request, output: TokenOutput, reason: str, stop_reason: int | None = None) -> None:
        """Frees what the request holds and makes `output` its last. Finished requests leave `running` in `_drop_finished`."""
        if request.status is Status.RUNNING:
            if reason != FinishReason.ERROR:
                self.cache.publish(request)
            self._release(request)
            self._has_finished = True
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        del self._requests[request.request_id]
        output.finish_reason = str(reason)
        output.stop_reason = stop_reason
        output.num_preemptions = request.num_preemptions
        if request.scheduled_at:
            output.scheduled_at = request.scheduled_at

    # --- shared ---

    def _release(self, request: Request) -> None:
        """Takes blocks and row back. A step in flight may still use both (see the module's docstring)."""
        self.pool.free(request.block_ids)
        self._free_rows.append(request.row)
        request.block_ids = []
        request.row = NO_ROW
        request.num_computed = request.capacity = request.num_published = request.prefill_end = 0

    def _drop_finished(self) -> None:
        if self._has_finished:
            self.running = [request for request in self.running if request.status is Status.RUNNING]
            self._has_finished = False

    def _take_notices(self) -> list[TokenOutput]:
        notices, self._notices = self._notices, []
        return notices

    def stats(self) -> EngineStats:
        """Gauges and counters; each call starts a new list of step sizes."""
        step_tokens = list(self._step_tokens)
        self._step_tokens.clear()
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_blocks=self.pool.num_usable,
            num_free_blocks=self.pool.num_free,
            num_preemptions=self._num_preemptions,
            prefix_queries=self.cache.num_queries,
            prefix_hits=self.cache.num_hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            num_steps=self._num_steps,
            step_tokens=step_tokens,
        )

    def check_integrity(self, *, thorough: bool = False) -> None:
        """Asserts that pool, rows, queue and requests agree. O(what requests hold), for idle moments; `thorough` is O(all blocks), for tests."""
        if thorough:
            self.pool.check_integrity()
        holders: Counter[int] = Counter()
        for request in self.running:
            assert request.status is Status.RUNNING
            assert self._requests[request.request_id] is request
            assert len(set(request.block_ids)) == len(request.block_ids), f"{request.request_id} has a block twice"
            assert request.num_computed <= request.capacity == len(request.block_ids) * self.limits.block_size
            holders.update(request.block_ids)
        assert all(self.pool.ref_count(block) == count for block, count in holders.items())
        assert self.pool.num_free + len(holders) == self.pool.num_usable, "a block that nobody holds is not free"
        assert sorted([*self._free_rows, *(request.row for request in self.running)]) == list(range(self.limits.max_num_seqs))
        assert self.running == sorted(self.running, key=_sort_key)
        waiting = [request for request in self._requests.values() if request.status is not Status.RUNNING]
        assert len(waiting) == len(self.waiting)
        assert all(request in self.waiting and not request.block_ids and request.row == NO_ROW for request in waiting)
        assert len(self._requests) == len(self.running) + len(self.waiting)


def _collect_prompt_logprobs(flight: Flight, by_row: dict[int, list[TokenLogprobs]]) -> None:
    """Adds a chunk's entries to those of earlier chunks. A request that starts over drops what it had, so nothing is counted twice."""
    for row, request in zip(flight.rows, flight.requests, strict=True):
        entries = by_row.get(row)
        if entries and request.prompt_logprobs is not None:
            request.prompt_logprobs += entries

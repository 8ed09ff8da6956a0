"""What one model's requests look like from outside: instruments per model, and a clock per sequence."""

from __future__ import annotations

from trivium.metrics import catalogue as c
from trivium.metrics.instruments import Registry
from trivium.protocol.messages import EngineReady, EngineStats
from trivium.types import FinishReason

ENGINE = "0"
"""Value of the `engine` label: vLLM numbers its data-parallel engines."""
QUEUE_FULL = "queue_full"
QUEUE_TIMEOUT = "queue_timeout"
"""`reason`s for which admission is refused."""


class ModelMetrics:
    """The series of one model, created at once so that each exists (at 0) from the start."""

    def __init__(self, registry: Registry, model_name: str) -> None:
        labels = (model_name, ENGINE)
        self._registry = registry
        self._labels = labels
        self.time_to_first_token = registry.histogram(c.TIME_TO_FIRST_TOKEN, *labels)
        self.inter_token_latency = registry.histogram(c.INTER_TOKEN_LATENCY, *labels)
        self.time_per_output_token = registry.histogram(c.TIME_PER_OUTPUT_TOKEN, *labels)
        self.e2e_latency = registry.histogram(c.E2E_LATENCY, *labels)
        self.queue_time = registry.histogram(c.QUEUE_TIME, *labels)
        self.inference_time = registry.histogram(c.INFERENCE_TIME, *labels)
        self.prefill_time = registry.histogram(c.PREFILL_TIME, *labels)
        self.decode_time = registry.histogram(c.DECODE_TIME, *labels)
        self.request_prompt_tokens = registry.histogram(c.REQUEST_PROMPT_TOKENS, *labels)
        self.request_generation_tokens = registry.histogram(c.REQUEST_GENERATION_TOKENS, *labels)
        self.request_preemptions = registry.histogram(c.REQUEST_PREEMPTIONS, *labels)
        self.request_prefill_computed = registry.histogram(c.REQUEST_PREFILL_COMPUTED, *labels)
        self.request_max_generation_tokens = registry.histogram(c.REQUEST_MAX_GENERATION_TOKENS, *labels)
        self.request_params_n = registry.histogram(c.REQUEST_PARAMS_N, *labels)
        self.request_params_max_tokens = registry.histogram(c.REQUEST_PARAMS_MAX_TOKENS, *labels)
        self.prompt_tokens_cached = registry.counter(c.PROMPT_TOKENS_CACHED, *labels)
        self.success = {reason: registry.counter(c.REQUEST_SUCCESS, *labels, reason.value) for reason in FinishReason}
        self.rejected_as_queue_full = registry.counter(c.ADMISSION_REJECTIONS, model_name, QUEUE_FULL)
        self.validation_time = registry.histogram(c.VALIDATION_TIME, *labels)
        self._held = registry.gauge(c.HELD_SEQUENCES, model_name)
        self._running = registry.gauge(c.NUM_REQUESTS_RUNNING, *labels)
        self._waiting = registry.gauge(c.NUM_REQUESTS_WAITING, *labels)
        self._kv_usage = registry.gauge(c.KV_CACHE_USAGE, *labels)
        self._engine_up = registry.gauge(c.ENGINE_UP, *labels)
        self._iteration_tokens = registry.histogram(c.ITERATION_TOKENS, *labels)
        self._totals = {
            field: registry.counter(metric, *labels)
            for field, metric in (
                ("num_preemptions", c.NUM_PREEMPTIONS),
                ("prefix_queries", c.PREFIX_CACHE_QUERIES),
                ("prefix_hits", c.PREFIX_CACHE_HITS),
                ("prompt_tokens", c.PROMPT_TOKENS),
                ("generation_tokens", c.GENERATION_TOKENS),
            )
        }
        self._last = EngineStats()

    def describe_engine(self, ready: EngineReady) -> None:
        self._registry.gauge(c.CACHE_CONFIG_INFO, *self._labels, str(ready.block_size), str(ready.num_blocks), ready.dtype).set(1.0)

    def set_engine_up(self, *, is_up: bool) -> None:
        self._engine_up.set(float(is_up))
        if not is_up:
            self._running.set(0.0)
            self._waiting.set(0.0)
            self._kv_usage.set(0.0)

    def on_stats(self, stats: EngineStats) -> None:
        """Gauges as reported; counters by what they grew. An engine that was restarted counts from zero again, ours go on."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting + self._held.value)
        self._kv_usage.set(1.0 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0)
        has_restarted = stats.num_steps < self._last.num_steps
        last = EngineStats() if has_restarted else self._last
        for field, counter in self._totals.items():
            counter.inc(max(0, getattr(stats, field) - getattr(last, field)))
        for num_tokens in stats.step_tokens:
            self._iteration_tokens.observe(num_tokens)
        self._last = stats


class SequenceClock:
    """Times of one sequence, all by `time.monotonic()`. Intervals are vLLM's: a preemption moves "scheduled" and "first token after it"."""

    __slots__ = ("_arrived_at", "_first_token_at", "_is_new_schedule", "_last_token_at", "_metrics", "_prefilled_at", "_scheduled_at", "num_tokens")

    def __init__(self, metrics: ModelMetrics, arrived_at: float) -> None:
        self._metrics = metrics
        self._arrived_at = arrived_at
        self._scheduled_at = 0.0
        self._first_token_at = 0.0
        self._prefilled_at = 0.0
        self._last_token_at = 0.0
        self._is_new_schedule = False
        self.num_tokens = 0

    @property
    def scheduled_at(self) -> float:
        """When the engine last took the sequence from its queue; 0 before."""
        return self._scheduled_at

    def on_scheduled(self, scheduled_at: float) -> None:
        self._scheduled_at = scheduled_at
        self._is_new_schedule = True

    def on_tokens(self, count: int, now: float) -> None:
        """`count` tokens arrived together; the time since the one before is shared out evenly."""
        if self.num_tokens == 0:
            self._first_token_at = now
            self._metrics.time_to_first_token.observe(now - self._arrived_at)
            if count > 1:
                self._metrics.inter_token_latency.observe(0.0, count - 1)
        else:
            self._metrics.inter_token_latency.observe((now - self._last_token_at) / count, count)
        if self._is_new_schedule or self.num_tokens == 0:
            self._prefilled_at = now
            self._is_new_schedule = False
        self.num_tokens += count
        self._last_token_at = now

    def on_finish(self, reason: FinishReason, *, now: float, num_prompt_tokens: int, num_cached_tokens: int, num_preemptions: int) -> None:
        """Called exactly once per sequence that reached the engine."""
        metrics = self._metrics
        metrics.success[reason].inc()
        metrics.e2e_latency.observe(now - self._arrived_at)
        metrics.request_prompt_tokens.observe(num_prompt_tokens)
        metrics.request_generation_tokens.observe(self.num_tokens)
        if self._scheduled_at > 0.0:
            metrics.request_preemptions.observe(num_preemptions)
            metrics.queue_time.observe(max(0.0, self._scheduled_at - self._arrived_at))
        if self.num_tokens == 0:
            return
        metrics.prompt_tokens_cached.inc(num_cached_tokens)
        metrics.request_prefill_computed.observe(num_prompt_tokens - num_cached_tokens)
        metrics.decode_time.observe(self._last_token_at - self._prefilled_at)
        if self._scheduled_at > 0.0:
            metrics.prefill_time.observe(max(0.0, self._prefilled_at - self._scheduled_at))
            metrics.inference_time.observe(max(0.0, self._last_token_at - self._scheduled_at))
        if self.num_tokens > 1:
            metrics.time_per_output_token.observe((self._last_token_at - self._first_token_at) / (self.num_tokens - 1))

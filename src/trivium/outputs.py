"""What `LLM` returns: vLLM's result classes, with the same names and fields."""

from __future__ import annotations

from dataclasses import dataclass, field

from trivium.types import LogprobsDict


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` continuations of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[LogprobsDict] | None
    finish_reason: str | None = None
    """stop, length, abort or error."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for EOS."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds on the monotonic clock."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its continuations."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsDict | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    lora_request: None = field(default=None)

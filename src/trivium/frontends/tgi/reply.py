"""One TGI request: what it asks of the service, and how its answer is written, whole or token by token."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from trivium.errors import TriviumError
from trivium.frontends.asgi import Headers, encode_json
from trivium.frontends.openai.logprobs import finite
from trivium.frontends.openai.structured import grammar_of
from trivium.frontends.tgi.errors import incomplete_generation
from trivium.frontends.tgi.schema import Parameters
from trivium.frontends.tgi.tokens import EXTRA_CANDIDATES, Shape, prefill_shapes, token_shapes, top_token_shapes
from trivium.service import ModelInfo, Vocabulary
from trivium.types import MAX_COUNT, UINT64_MAX, FinishReason, GenerateRequest, PromptInfo, SamplingParams, TokenEvent

DEFAULT_TEMPERATURE: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What is to be continued."""

    text: str
    """As the client sent it, before truncation; what `return_full_text` gives back."""
    token_ids: list[int]
    max_tokens: int | None
    """Most tokens to generate; None: what the context has room for."""


@dataclass(kw_only=True)
class Sequence:
    """One of the `best_of` answers so far."""

    seed: int | None
    text: list[str] = field(default_factory=list[str])
    tokens: list[Shape] = field(default_factory=list[Shape])
    top_tokens: list[list[Shape]] = field(default_factory=list[list[Shape]])
    num_tokens: int = 0
    sum_logprobs: float = 0.0
    finish_reason: str | None = None

    @property
    def mean_logprob(self) -> float:
        return self.sum_logprobs / max(1, self.num_tokens)


class Timer:
    """When the stages of a request began, by `time.monotonic()`."""

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.validated_at = self.arrived_at
        self.scheduled_at = 0.0

    def validate(self) -> None:
        """The request has passed its checks and goes into the queue."""
        self.validated_at = time.monotonic()

    def headers(self, num_tokens: int) -> Headers:
        """TGI's: whole milliseconds, but for the compute time in seconds."""
        now = time.monotonic()
        started = max(self.scheduled_at or self.validated_at, self.validated_at)
        inference = now - started
        seconds = {
            b"x-total-time": now - self.arrived_at,
            b"x-validation-time": self.validated_at - self.arrived_at,
            b"x-queue-time": started - self.validated_at,
            b"x-inference-time": inference,
            b"x-time-per-token": inference / max(1, num_tokens),
        }
        head: Headers = [(b"x-compute-time", f"{now - self.arrived_at:.6f}".encode())]
        return head + [(name, str(int(value * 1000)).encode()) for name, value in seconds.items()]


class Reply:
    """`parameters` have passed every check."""

    def __init__(
        self,
        prompt: Prompt,
        parameters: Parameters,
        model: ModelInfo,
        vocabulary: Vocabulary,
        timer: Timer,
        *,
        is_stream: bool = False,
        returns_prompt: bool = False,
    ) -> None:
        """`returns_prompt` counts where the request does not say."""
        self.timer = timer
        self.num_prompt_tokens = 0
        self._prompt = prompt
        self._parameters = parameters
        self._model = model
        self._vocabulary = vocabulary
        self._is_stream = is_stream
        self._returns_prompt = returns_prompt if parameters.return_full_text is None else parameters.return_full_text
        self.best_of = parameters.best_of or 1
        self._top_n = parameters.top_n_tokens or 0
        self._wants_tokens = is_stream or bool(parameters.details or parameters.decoder_input_details)
        self._seed = self._choose_seed()
        self._prefill: list[Shape] = []
        self._sequences = [Sequence(seed=None if self._seed is None else (self._seed + index) & UINT64_MAX) for index in range(self.best_of)]
        self._index = 0

    def _choose_seed(self) -> int | None:
        """None for greedy answers, which have no use for one; else the request's, or one that it can be repeated with."""
        if not self._parameters.samples:
            return None
        return secrets.randbits(64) if self._parameters.seed is None else self._parameters.seed

    # -- the request --------------------------------------------------------------------------------------------------------------

    def request(self, request_id: str, *, timeout_s: float | None, client: str) -> GenerateRequest:
        """Raises `InvalidRequest` for what TGI's checks let pass and the engine doesn't do."""
        return GenerateRequest(
            request_id=request_id,
            model=self._model.name,
            params=self._sampling_params(),
            prompt_token_ids=self._prompt.token_ids,
            n=self.best_of,
            timeout_s=timeout_s,
            client=client,
        )

    def _sampling_params(self) -> SamplingParams:
        """TGI takes no defaults from the model's generation_config.json."""
        given = self._parameters
        values: dict[str, Any] = {
            "temperature": given.temperature or DEFAULT_TEMPERATURE,
            "top_p": given.top_p,
            "top_k": given.top_k,
            "typical_p": given.typical_p,
            "repetition_penalty": given.repetition_penalty,
            "frequency_penalty": given.frequency_penalty,
            "stop": given.stop_strings or None,
            "seed": self._seed,
            "prompt_logprobs": 0 if given.decoder_input_details else None,
            "structured_outputs": None if given.grammar is None else grammar_of(given.grammar, "parameters.grammar"),
        }
        if not given.samples:
            values["temperature"] = 0.0
        params = SamplingParams(**{name: value for name, value in values.items() if value is not None}, include_stop_str_in_output=True)
        params.max_tokens = None if self._prompt.max_tokens is None else min(self._prompt.max_tokens, MAX_COUNT)
        if self._wants_tokens or self.best_of > 1:
            params.logprobs = self._num_candidates()
        return params

    def _num_candidates(self) -> int:
        if not self._top_n:
            return 0
        limit = self._model.max_logprobs
        wanted = self._top_n + EXTRA_CANDIDATES
        return wanted if limit == -1 else max(self._top_n, min(wanted, limit))

    # -- events -------------------------------------------------------------------------------------------------------------------

    async def on_prompt(self, info: PromptInfo) -> None:
        self.num_prompt_tokens = len(info.prompt_token_ids)
        self.timer.scheduled_at = info.scheduled_at
        if info.prompt_logprobs is not None:
            self._prefill = await prefill_shapes(info, self._vocabulary)

    async def on_event(self, event: PromptInfo | TokenEvent) -> None:
        """Keep the event for the whole answer."""
        if isinstance(event, PromptInfo):
            await self.on_prompt(event)
        else:
            self._keep(event)

    def _keep(self, event: TokenEvent) -> None:
        sequence = self._take(event)
        if event.logprobs is not None:
            chosen = (entries[token_id].logprob for entries, token_id in zip(event.logprobs, event.token_ids, strict=True))
            sequence.sum_logprobs += sum(map(finite, chosen))
            if self._wants_tokens:
                sequence.tokens += token_shapes(event, self._vocabulary)
                if self._top_n:
                    sequence.top_tokens += top_token_shapes(event, self._top_n, self._vocabulary)

    def _take(self, event: TokenEvent) -> Sequence:
        sequence = self._sequences[event.index]
        sequence.text.append(event.text)
        sequence.num_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            sequence.finish_reason = _finish_reason(event, is_stream=self._is_stream)
        return sequence

    # -- the whole answer ---------------------------------------------------------------------------------------------------------

    @property
    def num_generated_tokens(self) -> int:
        return self._best().num_tokens

    def _best(self) -> Sequence:
        """The answer whose tokens are the most likely on average; of equal ones the first."""
        return max(self._sequences, key=lambda sequence: sequence.mean_logprob)

    def text(self) -> str:
        return self._text_of(self._best())

    def _text_of(self, sequence: Sequence) -> str:
        text = "".join(sequence.text)
        return self._prompt.text + text if self._returns_prompt else text

    def shape(self) -> Shape:
        best = self._best()
        shape: Shape = {"generated_text": self._text_of(best)}
        if not self._wants_tokens:
            return shape
        details = self._details(best)
        if self.best_of > 1:
            others = [sequence for sequence in self._sequences if sequence is not best]
            details["best_of_sequences"] = [{"generated_text": self._text_of(other), **self._details(other)} for other in others]
        return {**shape, "details": details}

    def _details(self, sequence: Sequence) -> Shape:
        details: Shape = {
            "finish_reason": sequence.finish_reason,
            "generated_tokens": sequence.num_tokens,
            "seed": sequence.seed,
            "prefill": self._prefill,
            "tokens": sequence.tokens,
        }
        if self._top_n:
            details["top_tokens"] = sequence.top_tokens
        return details

    # -- a stream -----------------------------------------------------------------------------------------------------------------

    def chunk(self, event: TokenEvent) -> bytes:
        """One server-sent event for each token; the last one has the whole text."""
        tokens = token_shapes(event, self._vocabulary)
        tops = top_token_shapes(event, self._top_n, self._vocabulary) if self._top_n else []
        sequence = self._take(event)
        parts: list[bytes] = []
        for place, token in enumerate(tokens):
            self._index += 1
            shape: Shape = {"index": self._index, "token": token}
            if tops:
                shape["top_tokens"] = tops[place]
            is_last = event.finish_reason is not None and place == len(tokens) - 1
            shape["generated_text"] = self._text_of(sequence) if is_last else None
            shape["details"] = self._stream_details(sequence) if is_last and self._parameters.details else None
            parts.append(b"data:%b\n\n" % encode_json(shape))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stream_details(self, sequence: Sequence) -> Shape:
        return {
            "finish_reason": sequence.finish_reason,
            "generated_tokens": sequence.num_tokens,
            "seed": sequence.seed,
            "input_length": self.num_prompt_tokens,
        }

    # -- headers ------------------------------------------------------------------------------------------------------------------

    def compute_headers(self, compute_type: str) -> Headers:
        return [(b"x-compute-type", compute_type.encode()), (b"x-compute-characters", str(len(self._prompt.text)).encode())]

    def count_headers(self) -> Headers:
        num_tokens = self.num_generated_tokens
        counts: Headers = [(b"x-prompt-tokens", str(self.num_prompt_tokens).encode()), (b"x-generated-tokens", str(num_tokens).encode())]
        return self.timer.headers(num_tokens) + counts


def _finish_reason(event: TokenEvent, *, is_stream: bool) -> str:
    match event.finish_reason:
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.STOP:
            return "stop_sequence" if isinstance(event.stop_reason, str) else "eos_token"
        case _:
            error: TriviumError = incomplete_generation(is_stream=is_stream)
            raise error

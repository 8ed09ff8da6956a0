"""Wire-neutral vocabulary: what frontends parse into and render from. Nothing here knows HTTP, gRPC or torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from trivium.errors import InvalidRequest

MAX_N = 16384
GREEDY_EPSILON = 1e-5
"""Temperatures below this mean greedy decoding, as in vLLM."""
MIN_TEMPERATURE = 0.01
MAX_LOGIT_BIAS = 100.0
UINT64_MAX = 2**64 - 1
MAX_COUNT = 2**31 - 1
"""No count of tokens or candidates is larger: all of them fit in the engine's 64-bit tables with room for sums."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the answer must look like; exactly one of the first five is set. Names are vLLM's."""

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, as an object or as text."""
    regex: str | None = None
    """The whole answer matches it."""
    choice: list[str] | None = None
    grammar: str | None = None
    """A context-free grammar, in Lark's notation or in GBNF (`root ::= …`)."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """Between the tokens of JSON: none at all."""
    whitespace_pattern: str | None = None
    """Between the tokens of JSON: what this regular expression matches."""
    origin: str = "structured_outputs"
    """The request's field that asks for it: what errors name."""

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in kinds if getattr(self, name) not in (None, False) or (name == "json" and self.json is False)]
        if len(given) != 1:
            message = f"Exactly one of {', '.join(kinds[:-1])} and {kinds[-1]} must be set, got {', '.join(given) or 'none'}."
            raise InvalidRequest(message, param=self.origin)
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise InvalidRequest("disable_any_whitespace and whitespace_pattern exclude each other.", param=self.origin)


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How tokens of one request are chosen. Names, defaults and ranges are vLLM's; `typical_p` is TGI's.

    Raises `InvalidRequest`, with `param` set, for a value out of range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self.validate()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def validate(self) -> None:
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if check_finite("repetition_penalty", self.repetition_penalty) <= 0.0:
            raise InvalidRequest(f"repetition_penalty must be greater than 0, got {self.repetition_penalty}.", param="repetition_penalty")
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_int("n", self.n, 1, MAX_N)
        if self.n > 1 and self.is_greedy:
            raise InvalidRequest(f"n must be 1 when temperature is 0 (greedy), got {self.n}.", param="n")
        if GREEDY_EPSILON <= self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE
        for name in ("top_p", "typical_p"):
            value = check_finite(name, getattr(self, name))
            if not 0.0 < value <= 1.0:
                raise InvalidRequest(f"{name} must be in (0, 1], got {value}.", param=name)
        _check_int("top_k", self.top_k, -1, MAX_COUNT)
        self.top_k = max(self.top_k, 0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        if self.seed == -1:
            self.seed = None
        if self.seed is not None:
            _check_int("seed", self.seed, 0, UINT64_MAX)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        _check_int("min_tokens", self.min_tokens, 0, MAX_COUNT if self.max_tokens is None else self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None:
                _check_int(name, count, -1, MAX_COUNT)
        if not all(isinstance(text, str) and text for text in self.stop_strings):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest("stop must be text, or a list of texts that are not empty.", param="stop")
        if self.stop_strings and not self.detokenize:
            raise InvalidRequest("stop strings need detokenize=True.", param="stop")
        if self.bad_words and not all(self.bad_words):
            raise InvalidRequest("bad_words must not contain an empty string.", param="bad_words")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids must not be empty.", param="allowed_token_ids")
        if self.logit_bias:
            clamped = {int(key): check_finite("logit_bias", value) for key, value in self.logit_bias.items()}
            self.logit_bias = {key: max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, value)) for key, value in clamped.items()}


class Logprob(msgspec.Struct, frozen=True):
    """One candidate token. `logprob` is natural log of its probability in the raw distribution; `rank` starts at 1."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsDict = dict[int, Logprob]
"""Token id to its `Logprob`; the sampled (or prompt) token comes first, then the top candidates by rank."""


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation, as chat templates read it."""

    role: str
    content: str | None = None
    name: str | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """One prompt to be continued `n` times. Exactly one of `prompt`, `prompt_token_ids` and `messages` is set."""

    request_id: str
    model: str
    params: SamplingParams
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[ChatMessage] | None = None
    n: int = 1
    """Taken instead of `params.n`, since OpenAI allows n > 1 at temperature 0 and `SamplingParams` does not."""
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    truncate_prompt_tokens: int | None = None
    """Keep only the last N prompt tokens; -1 means as many as the context allows."""
    priority: int = 0
    cache_salt: str | None = None
    timeout_s: float | None = None
    client: str = ""
    """Whose request it is, where the queue is shared fairly between clients."""


class TokenEvent(msgspec.Struct, kw_only=True):
    """What happened to one choice since its last event: new text, new tokens, perhaps the end.

    `text` is final text: characters that may still become part of a stop string or of an unfinished UTF-8 sequence are held back.
    """

    index: int
    text: str = ""
    pieces: list[str] | None = None
    """`text` by token, where there are several; None: all of it belongs to the one token."""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[LogprobsDict] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the choice; None for EOS, as in vLLM."""


class PromptInfo(msgspec.Struct, kw_only=True):
    """Known once the prompt was processed; the first event of every request."""

    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsDict | None] | None = None
    num_cached_tokens: int = 0
    scheduled_at: float = 0.0
    """`time.monotonic()` at which the engine took the request from its queue; 0 where that is not known."""


class TextSpan(msgspec.Struct, frozen=True):
    """A token of a text and the characters it stands for, `text[start:stop]`; a token that was added stands for none."""

    token_id: int
    start: int
    stop: int


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a whole number, got {value!r}.", param=name)
    if not low <= value <= high:
        bounds = f"at least {low}" if value < low else f"at most {high}"
        raise InvalidRequest(f"{name} must be {bounds}, got {value}.", param=name)


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not low <= check_finite(name, value) <= high:
        raise InvalidRequest(f"{name} must be from {low:g} to {high:g}, got {value:g}.", param=name)


def check_finite(name: str, value: object) -> float:
    """The number as it is. Raises `InvalidRequest` for what is no number, infinite or NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be a number, got {value!r}.", param=name)
    if not math.isfinite(value):
        raise InvalidRequest(f"{name} must be finite, got {value}.", param=name)
    return value


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises `InvalidRequest` for an id outside the vocabulary: such an id must never reach the engine."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"{name} contains token id {token_id}, but ids go from 0 to {vocab_size - 1}.", param=name)

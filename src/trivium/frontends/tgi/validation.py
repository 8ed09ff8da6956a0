"""TGI's checks of a request, in its order and with its texts (router/src/validation.rs); every message goes out as "Input validation error: …".

`best_of` and `top_n_tokens` beyond the server's limits, `stop` strings, `truncate` and lengths are bounded here; what only the engine can tell
(a temperature above 2, say) is refused by the engine's own checks, with the same kind of error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trivium.config import TgiConfig
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.tgi.schema import Parameters
from trivium.service import ModelInfo
from trivium.types import UINT64_MAX

MAX_CHECKED_NEW_TOKENS: Final = 1024
"""TGI holds at most this many new tokens against `max_total_tokens`: a longer answer is accepted and ends when the context is full."""
MAX_STOP_CHARS: Final = 4096
"""Of all stop strings of a request together."""


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one model's requests are held to."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    allows_grammars: bool = True

    @classmethod
    def of(cls, config: TgiConfig, model: ModelInfo) -> RequestLimits:
        longest = model.max_model_len - 1
        return cls(
            max_best_of=config.max_best_of,
            max_stop_sequences=config.max_stop_sequences,
            max_top_n_tokens=config.max_top_n_tokens,
            max_input_tokens=longest if config.max_input_tokens is None else min(config.max_input_tokens, longest),
            max_total_tokens=model.max_model_len,
            allows_grammars=not config.disable_grammar_support,
        )


def check(inputs: str, parameters: Parameters, limits: RequestLimits, *, is_stream: bool) -> None:
    """Everything that can be said before the prompt is tokenized. Raises `InvalidRequest`."""
    _check_kind(parameters, limits, is_stream=is_stream)
    _check_sampling(parameters)
    if parameters.max_new_tokens is not None and parameters.max_new_tokens <= 0:
        raise _invalid("max_new_tokens", "must be strictly positive")
    if len(parameters.stop_strings) > limits.max_stop_sequences:
        count = len(parameters.stop_strings)
        raise _invalid("stop", f"supports up to {limits.max_stop_sequences} stop sequences. Given: {count}")
    if sum(map(len, parameters.stop_strings)) > MAX_STOP_CHARS:
        raise _invalid("stop", f"may hold at most {MAX_STOP_CHARS} characters in all")
    _check_seed(parameters)
    _check_top_n_tokens(parameters, limits)
    if not inputs:
        raise _invalid("inputs", "cannot be empty")
    truncate = parameters.truncate
    if truncate is not None and not 0 < truncate <= limits.max_input_tokens:
        raise _invalid("truncate", f"must be strictly positive and less than {limits.max_input_tokens}. Given: {truncate}")
    _refuse_unsupported(parameters, limits)


def check_lengths(num_input: int, max_new_tokens: int | None, limits: RequestLimits) -> int | None:
    """`num_input` tokens after truncation. Returns the most tokens that may be generated, None for what the context has room for."""
    if max_new_tokens is not None:
        new = min(max_new_tokens, MAX_CHECKED_NEW_TOKENS)
        if num_input + new > limits.max_total_tokens:
            given = f"Given: {num_input} `inputs` tokens and {new} `max_new_tokens`"
            message = f"`inputs` tokens + `max_new_tokens` must be <= {limits.max_total_tokens}. {given}"
            raise InvalidRequest(message, param="parameters.max_new_tokens")
    if num_input > limits.max_input_tokens:
        raise InvalidRequest(f"`inputs` must have less than {limits.max_input_tokens} tokens. Given: {num_input}", param="inputs")
    return max_new_tokens


def _invalid(name: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` {text}", param=name if name == "inputs" else f"parameters.{name}")


def _check_kind(parameters: Parameters, limits: RequestLimits, *, is_stream: bool) -> None:
    """What a stream can't have, and how many answers there may be."""
    best_of = 1 if parameters.best_of is None else parameters.best_of
    if is_stream and best_of != 1:
        raise _invalid("best_of", "!= 1 is not supported when streaming tokens")
    if is_stream and parameters.decoder_input_details:
        raise _invalid("decoder_input_details", "== true is not supported when streaming tokens")
    if best_of != 1 and limits.max_best_of == 1:
        raise _invalid("best_of", "!= 1 is not allowed for this endpoint")
    if not 0 < best_of <= limits.max_best_of:
        raise _invalid("best_of", f"must be > 0 and <= {limits.max_best_of}. Given: {best_of}")
    if best_of > 1 and not parameters.has_sampling_field:
        raise InvalidRequest("you must use sampling when `best_of` is > 1", param="parameters.best_of")


def _check_sampling(parameters: Parameters) -> None:
    temperature, repetition, frequency = parameters.temperature, parameters.repetition_penalty, parameters.frequency_penalty
    if temperature is not None and temperature <= 0.0:
        raise _invalid("temperature", "must be strictly positive")
    if repetition is not None and repetition <= 0.0:
        raise _invalid("repetition_penalty", "must be strictly positive")
    if frequency is not None and not -2.0 <= frequency <= 2.0:
        raise _invalid("frequency_penalty", "must be >= -2.0 and <= 2.0")
    if parameters.top_p is not None and not 0.0 < parameters.top_p < 1.0:
        raise _invalid("top_p", "must be > 0.0 and < 1.0")
    if parameters.typical_p is not None and not 0.0 < parameters.typical_p < 1.0:
        raise _invalid("typical_p", "must be > 0.0 and < 1.0")
    if parameters.top_k is not None and parameters.top_k <= 0:
        raise _invalid("top_k", "must be strictly positive")


def _check_seed(parameters: Parameters) -> None:
    if parameters.seed is None:
        return
    if (parameters.best_of or 1) > 1:
        raise _invalid("seed", "must not be set when `best_of` > 1")
    if not 0 <= parameters.seed <= UINT64_MAX:
        raise _invalid("seed", f"must be from 0 to {UINT64_MAX}. Given: {parameters.seed}")


def _check_top_n_tokens(parameters: Parameters, limits: RequestLimits) -> None:
    count = parameters.top_n_tokens
    if count is None:
        return
    if count != 0 and limits.max_top_n_tokens == 0:
        raise _invalid("top_n_tokens", "!= 0 is not allowed for this endpoint")
    if not 0 <= count <= limits.max_top_n_tokens:
        raise _invalid("top_n_tokens", f"must be >= 0 and <= {limits.max_top_n_tokens}. Given: {count}")


def _refuse_unsupported(parameters: Parameters, limits: RequestLimits) -> None:
    if parameters.watermark:
        raise UnsupportedFeature("`watermark` is not supported by this server", param="parameters.watermark")
    if parameters.adapter_id is not None:
        raise UnsupportedFeature("`adapter_id` is not supported: this server loads no adapters", param="parameters.adapter_id")
    if parameters.grammar is not None and not limits.allows_grammars:
        raise UnsupportedFeature("grammar is not supported", param="parameters.grammar")

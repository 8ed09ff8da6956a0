"""Everything that is checked and filled in before a request reaches an engine. What passes here must not be able to make a step fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from trivium.errors import ConfigError, InvalidRequest
from trivium.sources.paths import read_json_object
from trivium.text import Tokenizer
from trivium.types import UINT64_MAX, SamplingParams, check_token_ids

logger = logging.getLogger(__name__)

MAX_PRIORITY: Final = 2**31 - 1
"""Priorities are 32-bit integers."""
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_CHARS: Final = 1024
MAX_BAD_WORD_TOKENS: Final = 64
REPETITION_PENALTIES: Final = (1e-6, 1e6)
"""Beyond these, logits of common sizes leave the range of float32."""
_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
"""Fields of generation_config.json that are sampling defaults under the same name."""


def suggested_config(setting: str, own: dict[str, Any]) -> dict[str, Any]:
    """The generation config that sampling defaults come from. `setting` is `ModelSettings.generation_config`, `own` the model's.

    Raises `ConfigError` for a folder without a generation_config.json, `ModelLoadError` for a broken one.
    """
    if setting == "auto":
        return own
    if setting == "vllm":
        return {}
    path = Path(setting) / "generation_config.json"
    if not path.is_file():
        message = f"generation_config is auto, vllm or a folder with a generation_config.json; {path} does not exist."
        raise ConfigError(message, param="generation_config")
    return read_json_object(path)


def sampling_defaults(generation_config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters a model suggests. A value that isn't a valid parameter is left out rather than failing every request.

    `max_new_tokens` becomes the default of `max_tokens`; `do_sample: false` means greedy.
    """
    merged = {**generation_config, **overrides}
    found = {name: merged[name] for name in _DEFAULTS if merged.get(name) is not None}
    if merged.get("do_sample") is False:
        found["temperature"] = 0.0
    if merged.get("max_new_tokens") is not None:
        found["max_tokens"] = merged["max_new_tokens"]
    return {name: value for name, value in found.items() if _is_valid(name, value)}


def _is_valid(name: str, value: Any) -> bool:
    try:
        _check_penalty(msgspec.convert({name: value}, SamplingParams))
    except (msgspec.ValidationError, InvalidRequest) as error:
        logger.warning("generation_config: %s is ignored: %s", name, error)
        return False
    return True


def check_params(params: SamplingParams, *, vocab_size: int, max_logprobs: int) -> None:
    """Raises `InvalidRequest` for what only the model can tell: ids outside the vocabulary, longer lists than it, too many logprobs."""
    _check_penalty(params)
    for name in ("stop_token_ids", "allowed_token_ids"):
        ids = getattr(params, name) or ()
        if len(ids) > vocab_size:
            raise InvalidRequest(f"{name} has {len(ids)} entries, but there are only {vocab_size} tokens.", param=name)
        check_ids(name, ids, vocab_size)
    check_ids("logit_bias", list(params.logit_bias or ()), vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is None or max_logprobs == -1:
            continue
        if count == -1 or count > max_logprobs:
            raise InvalidRequest(f"{name} must be at most {max_logprobs} on this server, got {count}.", param=name)


def _check_penalty(params: SamplingParams) -> None:
    low, high = REPETITION_PENALTIES
    if not low <= params.repetition_penalty <= high:
        message = f"repetition_penalty must be from {low:g} to {high:g}, got {params.repetition_penalty:g}."
        raise InvalidRequest(message, param="repetition_penalty")


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """As `check_token_ids`: two passes in C; the loop that finds the culprit runs only when there is one."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        check_token_ids(name, ids, vocab_size)


def check_choosable(params: SamplingParams, *, eos_token_ids: Sequence[int], bad_words: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raises `InvalidRequest` when the request's own lists leave no token to choose from at its first step."""
    banned = {word[0] for word in bad_words if len(word) == 1}
    if params.min_tokens:
        banned.update(eos_token_ids, params.stop_token_ids or ())
    if not banned:
        return
    allowed = params.allowed_token_ids
    if (len(banned) >= vocab_size) if allowed is None else banned.issuperset(allowed):
        name = "bad_words" if allowed is None else "allowed_token_ids"
        raise InvalidRequest(f"{name}: bad_words and, before min_tokens, the tokens that end the answer leave no token to choose.", param=name)


def resolve_max_tokens(params: SamplingParams, *, room: int) -> int:
    """Most tokens of an answer for which the context has `room`. Raises `InvalidRequest` when that is less than `min_tokens`."""
    max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
    if params.min_tokens > max_tokens:
        message = f"min_tokens is {params.min_tokens}, but the prompt leaves room for {room} tokens only."
        raise InvalidRequest(message, param="min_tokens")
    return max_tokens


def child_params(params: SamplingParams, index: int, *, vocab_size: int) -> SamplingParams:
    """Parameters of choice `index`: its own random stream, prompt logprobs once, and "all logprobs" as a number."""
    seed = None if params.seed is None else (params.seed + index) & UINT64_MAX
    changes: dict[str, Any] = {}
    if index:
        changes["seed"] = seed
        changes["prompt_logprobs"] = None
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) == -1 and name not in changes:
            changes[name] = vocab_size
    return msgspec.structs.replace(params, **changes) if changes else params


def bad_words_token_ids(words: Sequence[str] | None, tokenizer: Tokenizer) -> list[list[int]]:
    """Token sequences that must not be completed: each word as it reads at the start of a text and after a space, as in vLLM."""
    found: list[list[int]] = []
    if len(words or ()) > MAX_BAD_WORDS:
        raise InvalidRequest(f"bad_words may hold at most {MAX_BAD_WORDS} words.", param="bad_words")
    for word in words or ():
        if len(word) > MAX_BAD_WORD_CHARS:
            raise InvalidRequest(f"bad_words may hold words of at most {MAX_BAD_WORD_CHARS} characters, got {len(word)}.", param="bad_words")
        bare = word.lstrip() or word
        plain = tokenizer.encode(bare, add_special_tokens=False)
        if not plain:
            raise InvalidRequest(f"bad_words: {word!r} has no tokens.", param="bad_words")
        if len(plain) > MAX_BAD_WORD_TOKENS:
            message = f"bad_words: a word has {len(plain)} tokens; at most {MAX_BAD_WORD_TOKENS} are allowed."
            raise InvalidRequest(message, param="bad_words")
        spaced = tokenizer.encode(" " + bare, add_special_tokens=False)
        found.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(spaced)
    if len(found) > MAX_BAD_WORDS:
        raise InvalidRequest(f"bad_words makes {len(found)} token sequences; at most {MAX_BAD_WORDS} are allowed.", param="bad_words")
    return found


def eos_token_ids(tokenizer: Tokenizer | None, config: dict[str, Any], generation_config: dict[str, Any], *, vocab_size: int) -> list[int]:
    """Every id that ends an answer: the tokenizer's, the model's, and those of generation_config.json (chat models have several). What is no
    token id of the model is ignored with a warning."""
    found: list[Any] = []
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.append(tokenizer.eos_token_id)
    for value in (config.get("eos_token_id"), generation_config.get("eos_token_id")):
        found += cast("list[Any]", value) if isinstance(value, list) else [value]
    ids: dict[int, None] = {}
    for item in found:
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < vocab_size:
            ids[item] = None
        elif item is not None:
            logger.warning("eos_token_id: %r is ignored: it is no token id of the model", item)
    return list(ids)

"""Everything that is checked and filled in before a request reaches an engine. What passes here must not be able to make a step fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trivium.errors import ConfigError, InvalidRequest
from trivium.sources.paths import read_json_object
from trivium.text import Tokenizer
from trivium.types import UINT64_MAX, SamplingParams, check_token_ids

MAX_BAD_WORDS: Final = 128
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
        msgspec.convert({name: value}, SamplingParams)
    except (msgspec.ValidationError, InvalidRequest):
        return False
    return True


def check_params(params: SamplingParams, *, vocab_size: int, max_logprobs: int) -> None:
    """Raises `InvalidRequest` for what only the model can tell: ids outside the vocabulary, too many logprobs."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        check_token_ids(name, getattr(params, name) or (), vocab_size)
    check_token_ids("logit_bias", list(params.logit_bias or ()), vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is None or max_logprobs == -1:
            continue
        if count == -1 or count > max_logprobs:
            raise InvalidRequest(f"{name} must be at most {max_logprobs} on this server, got {count}.", param=name)


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
        bare = word.lstrip() or word
        plain = tokenizer.encode(bare, add_special_tokens=False)
        if not plain:
            raise InvalidRequest(f"bad_words: {word!r} has no tokens.", param="bad_words")
        spaced = tokenizer.encode(" " + bare, add_special_tokens=False)
        found.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(spaced)
    if len(found) > MAX_BAD_WORDS:
        raise InvalidRequest(f"bad_words makes {len(found)} token sequences; at most {MAX_BAD_WORDS} are allowed.", param="bad_words")
    return found


def eos_token_ids(tokenizer: Tokenizer | None, config: dict[str, Any], generation_config: dict[str, Any]) -> list[int]:
    """Every id that ends an answer: the tokenizer's, the model's, and those of generation_config.json (chat models have several)."""
    ids: list[int] = []
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    for value in (config.get("eos_token_id"), generation_config.get("eos_token_id")):
        ids += [value] if isinstance(value, int) else [item for item in value or () if isinstance(item, int)]
    return list(dict.fromkeys(ids))

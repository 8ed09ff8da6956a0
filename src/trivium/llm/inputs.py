"""What callers of `LLM` hand over, checked and brought into one form before anything runs. Whatever passes here is of the right type."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from trivium.backends.llm_params import MAX_PRIORITY, check_params
from trivium.errors import InvalidRequest, PromptTooLong, UnsupportedFeature
from trivium.text import ChatTemplate, Tokenizer
from trivium.text.grammar import GrammarChecker, check_tokenizer
from trivium.types import ChatMessage, SamplingParams, StructuredOutputsParams, check_token_ids

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping with `prompt` or `prompt_token_ids`, and perhaps a `cache_salt`."""
Message = Mapping[str, Any] | ChatMessage

_PROMPT_KEYS: Final = ("prompt", "prompt_token_ids", "cache_salt")
_FIELD_IN_ERROR: Final = re.compile(r"`\$\.(\w+)")


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


class InputReader:
    """Knows the model's limits; `tokenizer` None: token ids only. Its methods raise `InvalidRequest`, with `param` set."""

    def __init__(self, tokenizer: Tokenizer | None, *, vocab_size: int, max_model_len: int, max_logprobs: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_logprobs = max_logprobs
        self._grammars = GrammarChecker()

    def prompts(self, given: Prompt | Sequence[Prompt]) -> list[TokenizedPrompt]:
        """A single prompt may be given bare; a list of ints is one prompt of token ids."""
        if isinstance(given, str | Mapping):
            items: list[Any] = [given]
        else:
            items = list(_iterable(given))
            if items and all(_is_int(item) for item in items):
                items = [items]
        return [self._prompt(item) for item in items]

    def params(self, given: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
        """One for each of `count` prompts. Copies: what the caller changes later doesn't reach a running request."""
        if isinstance(given, SamplingParams):
            return [self._params(given)] * count
        if len(given) != count:
            raise InvalidRequest(f"There are {len(given)} sampling_params for {count} prompts.", param="sampling_params")
        return [self._params(params) for params in given]

    def priorities(self, given: Sequence[int] | None, count: int) -> list[int]:
        if given is None:
            return [0] * count
        if len(given) != count:
            raise InvalidRequest(f"priority has {len(given)} entries for {count} prompts.", param="priority")
        found = _ints(given, "priority")
        if found and not -MAX_PRIORITY - 1 <= min(found) <= max(found) <= MAX_PRIORITY:
            raise InvalidRequest(f"priority must be from {-MAX_PRIORITY - 1} to {MAX_PRIORITY}.", param="priority")
        return found

    def _prompt(self, given: Any) -> TokenizedPrompt:
        if isinstance(given, str):
            return TokenizedPrompt(given, self._encode(given))
        if not isinstance(given, Mapping):
            return TokenizedPrompt(None, self._checked(_ints(_iterable(given), "prompts")))
        fields = {name: value for name, value in cast("Mapping[Any, Any]", given).items() if value is not None}
        for name in fields:
            if name not in _PROMPT_KEYS:
                raise UnsupportedFeature(f"A prompt has {', '.join(_PROMPT_KEYS)}; {name!r} is not supported.", param="prompts")
        text, ids, salt = (fields.get(name) for name in _PROMPT_KEYS)
        if not isinstance(text, str | None) or not isinstance(salt, str | None):
            raise InvalidRequest("prompt and cache_salt must be text.", param="prompts")
        if ids is not None:
            return TokenizedPrompt(text, self._checked(_ints(_iterable(ids), "prompt_token_ids")), salt)
        if text is None:
            raise InvalidRequest("A prompt has neither prompt nor prompt_token_ids.", param="prompts")
        return TokenizedPrompt(text, self._encode(text), salt)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise UnsupportedFeature("Without a tokenizer (skip_tokenizer_init) prompts must be token ids.", param="prompts")
        return self._checked(self._tokenizer.encode(text, max_tokens=self._max_model_len))

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids:
            raise InvalidRequest("The prompt has no tokens.", param="prompts")
        if len(ids) >= self._max_model_len:
            message = f"The prompt has {len(ids)} tokens, but prompt and output together hold {self._max_model_len}."
            raise PromptTooLong(message, param="prompts")
        # Two passes in C; the loop that finds the culprit runs only when there is one.
        if not 0 <= min(ids) <= max(ids) < self._vocab_size:
            check_token_ids("prompt_token_ids", ids, self._vocab_size)
        return ids

    def _params(self, given: SamplingParams) -> SamplingParams:
        """The struct doesn't look at types when it is made; a wrong one must not get as far as the engine."""
        if not isinstance(given, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"sampling_params must be SamplingParams, got {type(given).__name__}.", param="sampling_params")
        try:
            given.validate()
            params = msgspec.convert(msgspec.to_builtins(given), SamplingParams)
        except (msgspec.ValidationError, TypeError) as error:
            field = _FIELD_IN_ERROR.search(str(error))
            raise InvalidRequest(f"A value of sampling_params has the wrong type: {error}.", param=field[1] if field else "sampling_params") from None
        check_params(params, vocab_size=self._vocab_size, max_logprobs=self._max_logprobs)
        wanted = {"stop": params.stop_strings, "bad_words": params.bad_words, "structured_outputs": params.structured_outputs}
        for name in [name for name, value in wanted.items() if value] if self._tokenizer is None else ():
            raise UnsupportedFeature(f"{name} needs a tokenizer, and skip_tokenizer_init leaves it out.", param=name)
        return params

    def grammar(self, wanted: StructuredOutputsParams | None) -> str:
        """For the engine; empty where nothing is wanted."""
        if wanted is None:
            return ""
        if self._tokenizer is not None:
            check_tokenizer(self._tokenizer, wanted)
        return self._grammars.check_blocking(wanted)

    def close(self) -> None:
        self._grammars.close()


def conversations(given: Sequence[Message] | Sequence[Sequence[Message]]) -> list[list[dict[str, Any]]]:
    """One conversation, or several, as dicts whose content is text."""
    items = list(cast("Sequence[Any]", given))
    if items and isinstance(items[0], Mapping | ChatMessage):
        items = [items]
    return [[_message(message) for message in _iterable(item)] for item in items]


def render(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message] | Sequence[Sequence[Message]],
    *,
    max_tokens: int,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Mapping[str, Any] | None,
) -> list[Prompt]:
    """Each conversation as a prompt. Templates write the special tokens themselves."""
    prompts: list[Prompt] = []
    for conversation in conversations(messages):
        if not conversation:
            raise InvalidRequest("A conversation has no messages.", param="messages")
        text = template.render(
            conversation, add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message, kwargs=kwargs
        )
        prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False, max_tokens=max_tokens)})
    return prompts


def _message(given: Any) -> dict[str, Any]:
    if isinstance(given, ChatMessage):
        given = msgspec.to_builtins(given)
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"A message must be a mapping with role and content, got {type(given).__name__}.", param="messages")
    message = dict(cast("Mapping[str, Any]", given))
    if not isinstance(message.get("role"), str):
        raise InvalidRequest("A message needs a role.", param="messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in cast("list[Any]", content))
    if not isinstance(content, str | None):
        raise InvalidRequest("The content of a message must be text or a list of text parts.", param="messages")
    return {**message, "content": content or ""}


def _part(part: Any) -> str:
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}
    kind, text = fields.get("type"), fields.get("text")
    if kind != "text":
        raise UnsupportedFeature(f"A part of a message's content of type {kind!r} is not supported; only text is.", param="messages")
    if not isinstance(text, str):
        raise InvalidRequest("A text part of a message's content has no text.", param="messages")
    return text


def _iterable(given: Any) -> Iterable[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest('A prompt is text, token ids, {"prompt": …} or {"prompt_token_ids": …}.', param="prompts")
    return cast("Iterable[Any]", given)


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__")  # arrays have both


def _ints(values: Iterable[Any], name: str) -> list[int]:
    """Plain ints, of whatever integer types (numpy's too)."""
    try:
        return [int(operator.index(value)) for value in values]
    except TypeError as error:
        raise InvalidRequest(f"{name} must hold whole numbers: {error}.", param=name) from None

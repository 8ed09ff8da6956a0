"""From a request body to `SamplingParams` and `GenerateRequest`s."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from trivium import __version__
from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.openai.refusals import refuse_unsupported, refuse_unsupported_in_message
from trivium.frontends.openai.schema import GenerationBody, Message
from trivium.frontends.openai.structured import structured_outputs_of
from trivium.types import ChatMessage, SamplingParams

MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARS: Final = 4096
"""Of all stop strings of a request together."""
MAX_MESSAGES: Final = 8192
MAX_SALT_CHARS: Final = 1024
MAX_LOGIT_BIASES: Final = 16384
MAX_N: Final = 128
DEFAULT_COMPLETION_TOKENS: Final = 16
SYSTEM_FINGERPRINT: Final = f"trivium-{__version__}"

_COPIED: Final = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias", "top_k", "min_p", "typical_p"),
    *("repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
    *("spaces_between_special_tokens", "prompt_logprobs", "allowed_token_ids", "bad_words"),
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_ROLES: Final = ("system", "developer", "user", "assistant")


def check_common(body: GenerationBody) -> int:
    """Checks of both routes that need no model. Returns n."""
    refuse_unsupported(body)
    if body.stream_options is not None:
        refuse_unsupported(body.stream_options)
        if not body.stream:
            raise InvalidRequest("stream_options can only be set together with stream: true.", param="stream_options")
        if body.stream_options.continuous_usage_stats and not body.stream_options.include_usage:
            raise InvalidRequest("continuous_usage_stats needs include_usage.", param="stream_options.continuous_usage_stats")
    if isinstance(body.stop, list) and len(body.stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop may hold at most {MAX_STOP_STRINGS} strings, got {len(body.stop)}.", param="stop")
    if body.stop is not None and sum(map(len, [body.stop] if isinstance(body.stop, str) else body.stop)) > MAX_STOP_CHARS:
        raise InvalidRequest(f"stop may hold at most {MAX_STOP_CHARS} characters in all.", param="stop")
    if body.logit_bias is not None and len(body.logit_bias) > MAX_LOGIT_BIASES:
        raise InvalidRequest(f"logit_bias may hold at most {MAX_LOGIT_BIASES} tokens, got {len(body.logit_bias)}.", param="logit_bias")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs can't be streamed.", param="prompt_logprobs")
    if body.cache_salt is not None and not 1 <= len(body.cache_salt) <= MAX_SALT_CHARS:
        raise InvalidRequest(f"cache_salt must have 1 to {MAX_SALT_CHARS} characters.", param="cache_salt")
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_N:
        raise InvalidRequest(f"n must be from 1 to {MAX_N}, got {n}.", param="n")
    return n


def sampling_params(
    body: GenerationBody, defaults: Mapping[str, Any], config: HttpConfig, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The request's values, else the model's defaults, else those of `SamplingParams`. top_p 0 means the most likely token."""
    values: dict[str, Any] = dict(defaults)
    for name in _COPIED:
        value = getattr(body, name)
        if value is not None:
            values[name] = value
    if values.get("top_p") == 0:
        values["top_p"], values["top_k"] = 1.0, 1
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "structured_outputs": structured_outputs_of(body, config)}
    return SamplingParams(**values)


def request_id_of(body: GenerationBody, given: str | None) -> str:
    """The body's own id, else the `X-Request-Id` header's, else a new one."""
    if body.request_id is not None:
        if not is_request_id(body.request_id):
            raise InvalidRequest("request_id must be 1 to 128 letters, digits, '.', '_', ':' or '-'.", param="request_id")
        return body.request_id
    return given or new_request_id()


def is_request_id(text: str) -> bool:
    return _REQUEST_ID.fullmatch(text) is not None


def new_request_id() -> str:
    return secrets.token_hex(16)


def chat_messages(messages: list[Message] | None) -> list[ChatMessage]:
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    num_parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    if num_parts > MAX_MESSAGES:
        raise InvalidRequest(f"messages may hold at most {MAX_MESSAGES} parts of content in all, got {num_parts}.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"messages may hold at most {MAX_MESSAGES} messages, got {len(messages)}.", param="messages")
    return [_chat_message(message, index) for index, message in enumerate(messages)]


def _chat_message(message: Message, index: int) -> ChatMessage:
    where = f"messages[{index}]"
    refuse_unsupported_in_message(message, index)
    if message.role in ("tool", "function"):
        raise UnsupportedFeature(f"{where}.role {message.role!r} is not supported: tool calling is not supported yet.", param=f"{where}.role")
    if message.role not in _ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(_ROLES)}, got {message.role!r}.", param=f"{where}.role")
    content = message.content
    if content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content is required.", param=f"{where}.content")
    if isinstance(content, list):
        content = "\n".join(_part_text(part, f"{where}.content[{place}]") for place, part in enumerate(content))
    # OpenAI's name for the system role of newer models, which templates of open models don't know.
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role=role, content=content or "", name=message.name)


def _part_text(part: dict[str, Any], where: str) -> str:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where}.type must be a string.", param=f"{where}.type")
    if kind != "text":
        raise UnsupportedFeature(f"{where}: parts of type {kind!r} are not supported, only text.", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string.", param=f"{where}.text")
    unknown = [name for name in part if name not in ("type", "text")]
    if unknown:
        raise InvalidRequest(f"{where}: unknown field {unknown[0]!r}.", param=f"{where}.{unknown[0]}")
    return text

"""Known fields that ask for what this server can't do (yet): refused by name, unless their value asks for nothing."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trivium.errors import UnsupportedFeature

_TOOLS = "tool calling is not supported yet"

_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    # name: (values that ask for nothing, why the others are refused)
    "store": ((False,), "this server stores no completions"),
    "service_tier": (("auto", "default"), "there is only one service tier"),
    "use_beam_search": ((False,), "beam search is not supported"),
    "length_penalty": ((1, 1.0), "beam search is not supported"),
    "logprob_token_ids": (([],), "logprobs of chosen tokens are not supported"),
    "kv_transfer_params": (({},), "KV transfer is not supported"),
    "vllm_xargs": (({},), "there are no extra arguments here"),
    "repetition_detection": ((), "repetition detection is not supported"),
    "thinking_token_budget": ((-1,), "thinking budgets are not supported"),
    "stream_interval": ((1,), "every token is streamed as it comes"),
    "prompt_cache_retention": (("in_memory", "in-memory"), "cached prompts live in memory only"),
    "suffix": (("",), "insertion is not supported"),
    "prompt_embeds": ((), "prompt embeddings are not supported"),
    "tools": (([],), _TOOLS),
    "tool_choice": (("none", "auto"), _TOOLS),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "audio": ((), "audio is not supported"),
    "modalities": ((["text"],), "only text can be generated"),
    "prediction": ((), "predicted outputs are not supported"),
    "reasoning_effort": ((), "reasoning effort can't be set"),
    "verbosity": (("medium",), "verbosity can't be set"),
    "web_search_options": ((), "web search is not supported"),
    "documents": (([],), "documents are not supported"),
    "mm_processor_kwargs": (({},), "only text is supported"),
    "moderation": ((), "moderation is not supported"),
    "include_obfuscation": ((False,), "obfuscation of streams is not supported"),
}
_MESSAGE_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "refusal": (("",), "refusals can't be fed back"),
    "annotations": (([],), "annotations are not supported"),
    "audio": ((), "audio is not supported"),
    "function_call": ((), _TOOLS),
    "tool_calls": (([],), _TOOLS),
    "tool_call_id": ((), _TOOLS),
    "reasoning": (("",), "reasoning can't be fed back"),
    "reasoning_content": (("",), "reasoning can't be fed back"),
}


def refuse_unsupported(body: msgspec.Struct) -> None:
    """Raises `UnsupportedFeature` naming the first field that asks for what can't be done."""
    _refuse(body, _REFUSED, prefix="")


def refuse_unsupported_in_message(message: msgspec.Struct, index: int) -> None:
    _refuse(message, _MESSAGE_REFUSED, prefix=f"messages[{index}].")


def _refuse(body: msgspec.Struct, table: dict[str, tuple[tuple[Any, ...], str]], *, prefix: str) -> None:
    for name in body.__struct_fields__:
        rule = table.get(name)
        if rule is None:
            continue
        value = getattr(body, name)
        accepted, reason = rule
        if value is not None and not any(type(value) is type(empty) and value == empty for empty in accepted):
            raise UnsupportedFeature(f"{prefix}{name} is not supported: {reason}.", param=f"{prefix}{name}")

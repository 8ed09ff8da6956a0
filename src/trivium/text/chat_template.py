"""`ChatTemplate`: messages → prompt text, by the Jinja template that comes with a model, rendered in a process that can be lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trivium.errors import InvalidRequest, ModelLoadError, TriviumError
from trivium.text.tokenizer import Tokenizer
from trivium.text.worker_process import WorkerProcess
from trivium.types import ChatMessage

MAX_SOURCE_CHARS: Final = 1 << 20
MAX_OUTPUT_CHARS: Final = 1 << 24
CPU_SECONDS: Final = 5.0
"""A long conversation takes milliseconds."""
MAX_WORKER_BYTES: Final = 1 << 30

_WORKER_FILE: Final = Path(__file__).with_name("template_worker.py")
_RESERVED: Final = ("messages", "add_generation_prompt", "tools", "documents")
_CONTINUE_MARK: Final = "\ue000CONTINUE\ue000"
"""Put behind the last message, with a space, to find its end in the prompt: the space is gone where a template trims contents."""


class ChatTemplate:
    """One template with the special tokens it may name. Rendering blocks: call it off the event loop. Thread-safe."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        origin: str = "chat template",
        error: type[TriviumError] = ModelLoadError,
        cpu_seconds: float = CPU_SECONDS,
        max_output_chars: int = MAX_OUTPUT_CHARS,
    ) -> None:
        """`special_tokens`: `bos_token` and the like. Raises `error`, naming `origin`, for a template that is too long or has bad syntax."""
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._worker = WorkerProcess(_WORKER_FILE, [str(max_output_chars), str(cpu_seconds), str(MAX_WORKER_BYTES)])
        if len(source) > MAX_SOURCE_CHARS:
            raise error(f"{origin} has {len(source)} characters; at most {MAX_SOURCE_CHARS} are allowed.")
        answer = self._worker.ask({"source": source, "variables": None})
        if answer.keys() != {"text"}:
            raise error(f"{origin} is not a valid Jinja template: {answer.get('message', 'it is too complex')}")

    @classmethod
    def for_tokenizer(cls, source: str, tokenizer: Tokenizer) -> ChatTemplate:
        """A template that came with a request; `InvalidRequest` if it can't be used. Close it after use."""
        return cls(source, special_tokens=tokenizer.special_tokens, origin="chat_template", error=InvalidRequest)

    def render(
        self,
        messages: Sequence[Mapping[str, Any] | ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. `kwargs` are further variables of the template.

        Raises `InvalidRequest` for messages the template refuses or fails on, and for one that runs too long or writes too much.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest("add_generation_prompt and continue_final_message exclude each other.", param="continue_final_message")
        for name in kwargs or {}:
            if name in _RESERVED:
                raise InvalidRequest(f"chat_template_kwargs can't replace {name!r}.", param="chat_template_kwargs")
        turns = [_as_dict(message) for message in messages]
        if continue_final_message:
            _mark_end(turns)
        variables: dict[str, Any] = {**self._special_tokens, **(kwargs or {})}
        variables |= {"messages": turns, "tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        text = self._rendered(variables)
        return _until_mark(text) if continue_final_message else text

    def close(self) -> None:
        """Ends the worker; a later `render` starts another one."""
        self._worker.close()

    def _rendered(self, variables: dict[str, Any]) -> str:
        try:
            answer = self._worker.ask({"source": self.source, "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"The messages can't be given to a chat template: {error}", param="messages") from None
        if "text" in answer:
            return answer["text"]
        if answer["error"] == "raised":
            raise InvalidRequest(answer["message"], param="messages")
        if answer["error"] == "limit":
            raise InvalidRequest(f"The chat template takes too much time or memory with these messages ({answer['message']}).", param="messages")
        raise InvalidRequest(f"The chat template fails on these messages: {answer['message']}", param="messages")


def _as_dict(message: Mapping[str, Any] | ChatMessage) -> dict[str, Any]:
    """Templates test for absent keys, so a name that is not given must not be there; content always is."""
    if not isinstance(message, ChatMessage):
        return dict(message)
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    return turn if message.name is None else {**turn, "name": message.name}


def _mark_end(turns: list[dict[str, Any]]) -> None:
    content = turns[-1].get("content") if turns else None
    if not isinstance(content, str):
        raise InvalidRequest("continue_final_message needs a last message with text to continue.", param="messages")
    turns[-1]["content"] = f"{content}{_CONTINUE_MARK} "


def _until_mark(text: str) -> str:
    """Everything up to the end of the last message; trimmed as the template would have trimmed it without the mark."""
    before, mark, after = text.rpartition(_CONTINUE_MARK)
    if not mark:
        raise InvalidRequest("The chat template does not show the last message, so it can't be continued.", param="continue_final_message")
    return before if after.startswith(" ") else before.rstrip()

"""The interface between the service and whatever answers requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trivium.errors import TriviumError
from trivium.types import ChatMessage, GenerateRequest, PromptInfo, TextSpan, TokenEvent

GenerateEvent = PromptInfo | TokenEvent


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a client may know of a model, and what a frontend needs to fill in defaults."""

    name: str
    """The name asked for; aliases of one model have an info each."""
    root: str
    """The model's folder, file or hub name as the operator gave it."""
    created: int
    """Unix time at which the model was added."""
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    num_tokenizer_threads: int = 4
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters that apply where a request names none."""


class Generation(Protocol):
    """One request being answered: an async iterator of one `PromptInfo` and then `TokenEvent`s, ended by one event with a finish reason
    for each choice.

    `start` validates and hands the request on; it raises what is wrong with the request. Iterating starts it if need be. Closing, at any
    moment and any number of times, frees everything at once.
    """

    async def start(self) -> None: ...

    def __aiter__(self) -> Generation: ...

    async def __anext__(self) -> GenerateEvent: ...

    async def aclose(self) -> None: ...

    def fail(self, error: TriviumError) -> None:
        """End it from outside: the consumer gets `error`, the engine stops working on it."""
        ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Called once, when the request has ended, however it did."""
        ...


class Vocabulary(Protocol):
    """What token ids read."""

    async def detokenize(self, token_ids: list[int]) -> str: ...

    def token_strings(self, token_ids: list[int]) -> list[str]:
        """Text of each token on its own."""
        ...

    async def spell(self, token_ids: list[int]) -> list[str]:
        """As `token_strings`, off the event loop when there are many."""
        ...

    def token_bytes(self, token_ids: list[int]) -> list[bytes]:
        """What each token adds to a text: also where that is a part of a character."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether it steers the model rather than being text: begin, end and the like."""
        ...


class ModelBackend(Vocabulary, Protocol):
    """One loaded model."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def max_num_seqs(self) -> int:
        """Sequences it works on at once."""
        ...

    @property
    def is_alive(self) -> bool: ...

    def generate(self, request: GenerateRequest) -> Generation: ...

    async def tokenize(self, text: str, *, add_special_tokens: bool, is_bounded: bool = True) -> list[int]:
        """`is_bounded`: a text of many times the context is refused, since its tokens go nowhere; else its end may go to the model."""
        ...

    async def tokenize_chat(self, request: ChatPrompt) -> list[int]: ...

    async def render_chat(self, request: ChatPrompt) -> str:
        """The conversation as the model reads it."""
        ...

    async def spans(self, text: str, *, add_special_tokens: bool) -> list[TextSpan]:
        """The tokens of a text and where in it they are."""
        ...

    async def probe(self, timeout_s: float) -> None:
        """Returns once the model has proved that it can work. Raises `NotReady` or `EngineDead`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """A conversation and how to render it."""

    messages: list[ChatMessage]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

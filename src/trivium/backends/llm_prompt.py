"""From a request to prompt tokens: template, tokenizer, truncation and length checks; long texts off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from trivium.backends.base import ChatPrompt
from trivium.backends.llm_params import check_ids
from trivium.errors import InvalidRequest, PromptTooLong, UnsupportedFeature
from trivium.text import ChatTemplate, Tokenizer
from trivium.types import GenerateRequest, TextSpan

T = TypeVar("T")

INLINE_CHARS: Final = 4096
"""Shorter texts are tokenized where they are: a thread's hand-over costs as much."""
NUM_THREADS: Final = 4
NUM_TEMPLATE_THREADS: Final = 4
"""Of their own: templates that take long must not keep others from being tokenized."""
MIN_BOUND: Final = 1 << 16
"""Fewer token ids than this are never too many for /tokenize and /detokenize, however short the context."""


@dataclass(frozen=True)
class Prompt:
    token_ids: list[int]
    text: str | None
    """As it was tokenized; None for prompts given as token ids, and when tokens were cut off."""


class Prompter:
    """Knows the tokenizer (None: token ids only) and the chat template (None: the model has none) of one model."""

    def __init__(
        self, tokenizer: Tokenizer | None, template: ChatTemplate | None, *, max_model_len: int, vocab_size: int, num_threads: int = NUM_THREADS
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._bound = max(MIN_BOUND, 4 * max_model_len)
        """Most token ids of a text that goes to no model."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._template_threads = ThreadPoolExecutor(NUM_TEMPLATE_THREADS, thread_name_prefix="template")

    async def prompt(self, request: GenerateRequest) -> Prompt:
        """Raises `InvalidRequest`, `PromptTooLong` or `UnsupportedFeature` with the field at fault."""
        kept = self._num_kept(request)
        limit = None if kept is not None else self._max_model_len
        if request.prompt_token_ids is not None:
            prompt = Prompt(request.prompt_token_ids if kept is None else request.prompt_token_ids[-kept:], None)
        elif request.messages is not None:
            prompt = await self.chat(_chat_prompt(request), max_tokens=limit)
        else:
            assert request.prompt is not None, "a request without a prompt"
            prompt = await self.text(request.prompt, add_special_tokens=request.add_special_tokens, max_tokens=limit)
        if kept is not None and len(prompt.token_ids) > kept:
            # The text is that of more tokens: whoever wants it decodes those that are left.
            prompt = Prompt(prompt.token_ids[-kept:], None)
        name = "prompt" if request.messages is None else "messages"
        self._check_length(prompt, name)
        # Also of texts: a tokenizer may know more tokens than its model.
        check_ids(name, prompt.token_ids, self._vocab_size)
        return prompt

    async def text(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> Prompt:
        tokenizer = self.tokenizer("prompt")
        encode = partial(tokenizer.encode, text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)
        return Prompt(await self.run(encode, len(text)), text)

    async def tokenize(self, text: str, *, add_special_tokens: bool, is_bounded: bool = True) -> list[int]:
        """Token ids that go to no model. If `is_bounded`, a text of more than `max(65536, 4 * max_model_len)` tokens is refused."""
        return (await self.text(text, add_special_tokens=add_special_tokens, max_tokens=self._bound if is_bounded else None)).token_ids

    async def tokenize_chat(self, prompt: ChatPrompt) -> list[int]:
        return (await self.chat(prompt, max_tokens=self._bound)).token_ids

    async def spans(self, text: str, *, add_special_tokens: bool) -> list[TextSpan]:
        """As `tokenize`, with the place of each token."""
        encode = partial(self.tokenizer("inputs").encode_spans, text, add_special_tokens=add_special_tokens, max_tokens=self._bound)
        return await self.run(encode, len(text))

    async def render(self, prompt: ChatPrompt) -> str:
        """The conversation as text."""
        tokenizer = self.tokenizer("messages")
        template = self._template
        if template is None and prompt.chat_template is None:
            raise UnsupportedFeature("This model has no chat template; set one with --chat-template, or use completions.", param="messages")
        # Templates are rendered by another process, which is waited for.
        render = partial(_render, template, tokenizer, prompt)
        return await asyncio.get_running_loop().run_in_executor(self._template_threads, render)

    async def chat(self, prompt: ChatPrompt, *, max_tokens: int | None = None) -> Prompt:
        text = await self.render(prompt)
        try:
            return await self.text(text, add_special_tokens=prompt.add_special_tokens, max_tokens=max_tokens)
        except PromptTooLong as error:
            raise PromptTooLong(error.message, param="messages") from None

    async def detokenize(self, token_ids: list[int]) -> str:
        if len(token_ids) > self._bound:
            raise InvalidRequest(f"There are {len(token_ids)} tokens; at most {self._bound} are accepted.", param="tokens")
        check_ids("tokens", token_ids, self._vocab_size)
        tokenizer = self.tokenizer("tokens")
        return await self.run(partial(tokenizer.decode, token_ids, skip_special_tokens=False), len(token_ids))

    def tokenizer(self, param: str) -> Tokenizer:
        if self._tokenizer is None:
            raise UnsupportedFeature("This server runs without a tokenizer (--skip-tokenizer-init): only token ids go in and out.", param=param)
        return self._tokenizer

    def close(self) -> None:
        for threads in (self._threads, self._template_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], T], size: int) -> T:
        """The function's result; `size` is its work, in characters to be tokenized: much of it is done in a thread."""
        if size < INLINE_CHARS:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def _num_kept(self, request: GenerateRequest) -> int | None:
        kept = request.truncate_prompt_tokens
        if kept is None:
            return None
        if kept == -1:
            return max(1, self._max_model_len - max(1, request.params.max_tokens or 1))
        if not 1 <= kept <= self._max_model_len:
            message = f"truncate_prompt_tokens must be -1 or from 1 to {self._max_model_len}, got {kept}."
            raise InvalidRequest(message, param="truncate_prompt_tokens")
        return kept

    def _check_length(self, prompt: Prompt, param: str) -> None:
        length = len(prompt.token_ids)
        if length == 0:
            raise InvalidRequest("The prompt has no tokens.", param=param)
        if length >= self._max_model_len:
            message = f"The prompt has {length} tokens, but the context holds {self._max_model_len} and the answer needs at least one."
            raise PromptTooLong(message, param=param)


def _chat_prompt(request: GenerateRequest) -> ChatPrompt:
    assert request.messages is not None
    return ChatPrompt(
        messages=request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        add_special_tokens=request.add_special_tokens,
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def _render(template: ChatTemplate | None, tokenizer: Tokenizer, prompt: ChatPrompt) -> str:
    """The conversation as text. Templates write the special tokens themselves."""
    if prompt.chat_template is None:
        assert template is not None
        return _text(template, prompt)
    own = ChatTemplate.for_tokenizer(prompt.chat_template, tokenizer)
    try:
        return _text(own, prompt)
    finally:
        own.close()


def _text(template: ChatTemplate, prompt: ChatPrompt) -> str:
    return template.render(
        prompt.messages,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        kwargs=prompt.chat_template_kwargs,
    )

"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.asgi import encode_json
from trivium.frontends.openai.logprobs import ChatLogprobs, prompt_logprobs
from trivium.frontends.openai.params import SYSTEM_FINGERPRINT, chat_messages, check_common, request_id_of, sampling_params
from trivium.frontends.openai.schema import ChatBody
from trivium.frontends.openai.usage import UsageCounter
from trivium.service import ModelInfo, Vocabulary
from trivium.types import GenerateRequest, PromptInfo, SamplingParams, TokenEvent

MAX_TOP_LOGPROBS: Final = 20


@dataclass(kw_only=True)
class Choice:
    """What is known of one choice so far."""

    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    is_open: bool = False


class ChatReply:
    """One request: what it asks of the service, and how the answer is written, whole or chunk by chunk."""

    def __init__(
        self,
        body: ChatBody,
        model: ModelInfo,
        config: HttpConfig,
        request_id: str | None,
        vocabulary: Vocabulary,
    ) -> None:
        self.n = check_common(body)
        self._messages = chat_messages(body.messages)
        _check(body, config)
        self._body = body
        self._config = config
        as_ids = bool(body.return_tokens_as_token_ids) or config.return_tokens_as_token_ids
        self._logprobs = ChatLogprobs(body.top_logprobs or 0, vocabulary, as_ids=as_ids)
        self._id = f"chatcmpl-{request_id_of(body, request_id)}"
        self._created = int(time.time())
        self._model = body.model or model.name
        self._usage = UsageCounter()
        self._prompt: PromptInfo | None = None
        self._choices: dict[int, Choice] = {}
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage) or config.enable_force_include_usage
        self._usage_in_chunks = bool(options and options.continuous_usage_stats)
        head = encode_json({"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._is_plain = not body.logprobs and not body.return_token_ids and not self._usage_in_chunks
        self._params = self._sampling_params(model)

    # -- the request --------------------------------------------------------------------------------------------------------------

    def requests(self) -> list[GenerateRequest]:
        body = self._body
        request = GenerateRequest(
            request_id=self._id,
            model=body.model or "",
            params=self._params,
            messages=self._messages,
            n=self.n,
            add_special_tokens=bool(body.add_special_tokens),
            add_generation_prompt=not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            chat_template=body.chat_template,
            chat_template_kwargs=body.chat_template_kwargs,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
        )
        return [request]

    def _sampling_params(self, model: ModelInfo) -> SamplingParams:
        body = self._body
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if max_tokens is None:
            max_tokens = model.sampling_defaults.get("max_tokens")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        try:
            return sampling_params(body, model.sampling_defaults, self._config, max_tokens=max_tokens, logprobs=logprobs)
        except InvalidRequest as error:
            if error.param == "max_tokens" and body.max_completion_tokens is not None:
                raise InvalidRequest(error.message.replace("max_tokens", "max_completion_tokens"), param="max_completion_tokens") from None
            raise

    # -- events -------------------------------------------------------------------------------------------------------------------

    def on_prompt(self, number: int, info: PromptInfo) -> None:
        self._prompt = info
        self._usage.on_prompt(info)

    def on_tokens(self, number: int, event: TokenEvent) -> None:
        """Keep the event for the whole answer."""
        choice = self._choices.get(event.index)
        if choice is None:
            choice = self._choices[event.index] = Choice()
        if not choice.is_open:
            choice.is_open = True
            choice.texts.append(self._echoed())
        self._usage.on_tokens(event)
        choice.texts.append(event.text)
        choice.token_ids += event.token_ids
        if event.logprobs:
            choice.logprobs += self._logprobs.content(event.logprobs, event.token_ids)
        if event.finish_reason is not None:
            choice.finish_reason = event.finish_reason.value
            choice.stop_reason = event.stop_reason

    def _echoed(self) -> str:
        """With `echo`, an answer that continues the assistant's last message begins with that message."""
        last = self._messages[-1]
        return last.content or "" if self._body.echo and last.role == "assistant" else ""

    # -- the whole answer ---------------------------------------------------------------------------------------------------------

    def whole(self) -> bytes:
        assert self._prompt is not None
        choices: list[dict[str, Any]] = []
        for index, choice in sorted(self._choices.items()):
            message = {"role": "assistant", "content": "".join(choice.texts), "refusal": None}
            shape: dict[str, Any] = {
                "index": index,
                "message": message,
                "logprobs": {"content": choice.logprobs, "refusal": None} if self._body.logprobs else None,
            }
            shape |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            if self._body.return_token_ids:
                shape["token_ids"] = choice.token_ids
            choices.append(shape)
        answer: dict[str, Any] = {"id": self._id, "object": "chat.completion", "created": self._created, "model": self._model, "choices": choices}
        answer |= {"usage": self._usage.shape(), "system_fingerprint": SYSTEM_FINGERPRINT}
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = self._prompt.prompt_token_ids
        if self._body.prompt_logprobs is not None and self._prompt.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._prompt.prompt_logprobs)
        return encode_json(answer)

    # -- chunks -------------------------------------------------------------------------------------------------------------------

    def chunk(self, number: int, event: TokenEvent) -> bytes:
        """The event as chunks: the role before a choice's first, the content if there is any, the finish reason by itself."""
        choice = self._choices.get(event.index)
        opening = b""
        if choice is None:
            choice = self._choices[event.index] = Choice(is_open=True)
            opening = self._opening_chunk(event.index)
        self._usage.usage.completion_tokens += len(event.token_ids)
        content = b""
        if event.text or (not self._is_plain and event.token_ids):
            content = self._content_chunk(event)
        if event.finish_reason is None:
            return opening + content if opening else content
        return opening + content + self._finish_chunk(event)

    def _opening_chunk(self, index: int) -> bytes:
        shape: dict[str, Any] = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        tail: dict[str, Any] = {}
        if self._body.return_token_ids and self._prompt is not None:
            tail["prompt_token_ids"] = self._prompt.prompt_token_ids
        chunks = self._framed(shape, tail)
        echoed = self._echoed()
        if echoed:
            chunks += self._framed({"index": index, "delta": {"content": echoed}, "logprobs": None, "finish_reason": None})
        return chunks

    def _content_chunk(self, event: TokenEvent) -> bytes:
        if self._is_plain:
            return b'%b{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}]}\n\n' % (
                self._head,
                event.index,
                encode_json(event.text),
            )
        shape: dict[str, Any] = {"index": event.index, "delta": {"content": event.text}, "logprobs": None, "finish_reason": None}
        if event.logprobs:
            shape["logprobs"] = {"content": self._logprobs.content(event.logprobs, event.token_ids), "refusal": None}
        if self._body.return_token_ids:
            shape["token_ids"] = event.token_ids
        return self._framed(shape)

    def _finish_chunk(self, event: TokenEvent) -> bytes:
        assert event.finish_reason is not None
        shape: dict[str, Any] = {"index": event.index, "delta": {}, "logprobs": None, "finish_reason": event.finish_reason.value}
        return self._framed({**shape, "stop_reason": event.stop_reason})

    def _framed(self, choice: dict[str, Any], tail: dict[str, Any] | None = None) -> bytes:
        tail = dict(tail or {})
        if self._usage_in_chunks:
            tail["usage"] = self._usage.shape()
        end = b"," + encode_json(tail)[1:] if tail else b"}"
        return b"%b%b]%b\n\n" % (self._head, encode_json(choice), end)

    def usage_chunk(self) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, encode_json(self._usage.shape()))


def _check(body: ChatBody, config: HttpConfig) -> None:
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
        if not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, got {body.top_logprobs}.", param="top_logprobs")
    both = (body.max_tokens, body.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise InvalidRequest("max_tokens and max_completion_tokens differ; set one of them.", param="max_tokens")
    check_template_fields(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        config=config,
    )


def check_template_fields(
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    chat_template: str | None,
    chat_template_kwargs: dict[str, Any] | None,
    config: HttpConfig,
) -> None:
    """Raises when a request's template settings contradict each other or want what the operator didn't allow."""
    if add_generation_prompt and continue_final_message:
        raise InvalidRequest("add_generation_prompt and continue_final_message can't both be true.", param="continue_final_message")
    if chat_template is not None and not config.trust_request_chat_template:
        reason = "this server takes no chat templates from requests (--trust-request-chat-template allows them)"
        raise UnsupportedFeature(f"chat_template is refused: {reason}.", param="chat_template")
    for name in ("chat_template", "tokenize", "messages", "add_generation_prompt", "continue_final_message", "tools"):
        if name in (chat_template_kwargs or {}):
            raise InvalidRequest(f"chat_template_kwargs must not set {name!r}.", param=f"chat_template_kwargs.{name}")

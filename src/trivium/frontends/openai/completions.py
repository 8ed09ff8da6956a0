"""`POST /v1/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest
from trivium.frontends.asgi import encode_json
from trivium.frontends.openai.logprobs import CompletionLogprobs, prompt_logprobs
from trivium.frontends.openai.params import DEFAULT_COMPLETION_TOKENS, SYSTEM_FINGERPRINT, check_common, request_id_of, sampling_params
from trivium.frontends.openai.schema import CompletionBody
from trivium.frontends.openai.usage import UsageCounter
from trivium.service import ModelInfo, Vocabulary
from trivium.types import GenerateRequest, PromptInfo, SamplingParams, TokenEvent

MAX_PROMPTS: Final = 8192


@dataclass(kw_only=True)
class Choice:
    """What is known of one choice so far."""

    logprobs: CompletionLogprobs | None
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    shapes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    is_open: bool = False


class CompletionReply:
    """One request: what it asks of the service, and how the answer is written, whole or chunk by chunk."""

    def __init__(self, body: CompletionBody, model: ModelInfo, config: HttpConfig, request_id: str | None, vocabulary: Vocabulary) -> None:
        self.n = check_common(body)
        self._body = body
        self._config = config
        self._vocabulary = vocabulary
        self._as_ids = bool(body.return_tokens_as_token_ids) or config.return_tokens_as_token_ids
        self._id = f"cmpl-{request_id_of(body, request_id)}"
        self._created = int(time.time())
        self._model = body.model or model.name
        self._usage = UsageCounter()
        self._prompts: dict[int, PromptInfo] = {}
        self._choices: dict[int, Choice] = {}
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage) or config.enable_force_include_usage
        self._usage_in_chunks = bool(options and options.continuous_usage_stats)
        self._head = self._chunk_head()
        self._is_plain = body.logprobs is None and not body.return_token_ids and not self._usage_in_chunks
        _check(body, self.n)
        self._max_prompts = config.tgi.max_client_batch_size or MAX_PROMPTS
        self._params = self._sampling_params(model)

    # -- the request --------------------------------------------------------------------------------------------------------------

    def requests(self) -> list[GenerateRequest]:
        prompts = _prompts(self._body)
        if len(prompts) > self._max_prompts:
            message = f"Number of prompts exceeds the maximum allowed batch size of {self._max_prompts}."
            raise InvalidRequest(message, param="prompt")
        return [self._request(prompt, number) for number, prompt in enumerate(prompts)]

    def _request(self, prompt: str | list[int], number: int) -> GenerateRequest:
        body = self._body
        return GenerateRequest(
            request_id=f"{self._id}-{number}",
            model=body.model or "",
            params=self._params,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=prompt if isinstance(prompt, list) else None,
            n=self.n,
            add_special_tokens=body.add_special_tokens is not False,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
        )

    def _sampling_params(self, model: ModelInfo) -> SamplingParams:
        body = self._body
        max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        params = sampling_params(body, model.sampling_defaults, self._config, max_tokens=max_tokens or 1, logprobs=body.logprobs)
        if body.echo and body.logprobs is not None and params.prompt_logprobs is None:
            params.prompt_logprobs = body.logprobs
        return params

    @property
    def _echoes_only(self) -> bool:
        """`max_tokens: 0` with `echo` asks for the prompt alone; the engine samples a token that is not shown."""
        return self._body.max_tokens == 0

    # -- events -------------------------------------------------------------------------------------------------------------------

    def on_prompt(self, number: int, info: PromptInfo) -> None:
        self._prompts[number] = info
        self._usage.on_prompt(info)

    def on_tokens(self, number: int, event: TokenEvent) -> None:
        """Keep the event for the whole answer."""
        choice = self._choice(number, event.index)
        if not choice.is_open:
            self._open(number, choice)
        if self._echoes_only:
            event = TokenEvent(index=event.index, finish_reason=event.finish_reason)
        self._usage.on_tokens(event)
        choice.texts.append(event.text)
        choice.token_ids += event.token_ids
        if choice.logprobs is not None and event.logprobs:
            choice.shapes.append(choice.logprobs.add(event.logprobs, event.token_ids))
        if event.finish_reason is not None:
            choice.finish_reason = event.finish_reason.value
            choice.stop_reason = event.stop_reason

    def _choice(self, number: int, index: int) -> Choice:
        place = number * self.n + index
        choice = self._choices.get(place)
        if choice is None:
            top = self._body.logprobs
            choice = self._choices[place] = Choice(logprobs=None if top is None else CompletionLogprobs(top, as_ids=self._as_ids))
        return choice

    def _open(self, number: int, choice: Choice) -> None:
        choice.is_open = True
        info = self._prompts[number]
        if self._body.echo:
            choice.texts.append(info.prompt or "")
            if choice.logprobs is not None and info.prompt_logprobs is not None:
                # No logprob, and so no text, comes with the first token.
                [first] = self._vocabulary.token_strings(info.prompt_token_ids[:1])
                choice.shapes.append(choice.logprobs.add(info.prompt_logprobs, info.prompt_token_ids, first_text=first))

    def _take(self, choice: Choice) -> dict[str, Any]:
        """The choice as JSON, with all that was kept; the choice is empty after it."""
        shape: dict[str, Any] = {"text": "".join(choice.texts), "logprobs": _joined(choice.shapes) if choice.logprobs is not None else None}
        shape["finish_reason"] = choice.finish_reason
        shape["stop_reason"] = choice.stop_reason
        if self._body.return_token_ids:
            shape["token_ids"] = choice.token_ids
        choice.texts, choice.token_ids, choice.shapes = [], [], []
        return shape

    # -- the whole answer ---------------------------------------------------------------------------------------------------------

    def whole(self) -> bytes:
        choices: list[dict[str, Any]] = []
        for place, choice in sorted(self._choices.items()):
            shape = {"index": place, **self._take(choice)}
            info = self._prompts[place // self.n]
            if self._body.return_token_ids:
                shape["prompt_token_ids"] = info.prompt_token_ids
            if self._body.prompt_logprobs is not None and info.prompt_logprobs is not None:
                shape["prompt_logprobs"] = prompt_logprobs(info.prompt_logprobs)
            choices.append(shape)
        answer = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        return encode_json({**answer, "choices": choices, "usage": self._usage.shape(), "system_fingerprint": SYSTEM_FINGERPRINT})

    # -- chunks -------------------------------------------------------------------------------------------------------------------

    def _chunk_head(self) -> bytes:
        head = encode_json({"id": self._id, "object": "text_completion", "created": self._created, "model": self._model})
        return b"data: " + head[:-1] + b',"choices":['

    def chunk(self, number: int, event: TokenEvent) -> bytes:
        """The event as a chunk, or nothing if it brings nothing a client could see."""
        if self._is_plain and event.finish_reason is None and not self._body.echo:
            self._usage.usage.completion_tokens += len(event.token_ids)
            if not event.text:
                return b""
            place = number * self.n + event.index
            return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n' % (
                self._head,
                place,
                encode_json(event.text),
            )
        choice = self._choice(number, event.index)
        is_first = not choice.is_open
        self.on_tokens(number, event)
        if self._is_plain and event.finish_reason is None and not any(choice.texts):
            return b""
        shape = {"index": number * self.n + event.index, **self._take(choice)}
        if is_first and self._body.return_token_ids:
            shape["prompt_token_ids"] = self._prompts[number].prompt_token_ids
        usage = b',"usage":' + encode_json(self._usage.shape()) if self._usage_in_chunks else b""
        return b"%b%b]%b}\n\n" % (self._head, encode_json(shape), usage)

    def usage_chunk(self) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, encode_json(self._usage.shape()))


def _check(body: CompletionBody, n: int) -> None:
    if body.best_of is not None and body.best_of != n:
        raise InvalidRequest("best_of is not supported other than equal to n.", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens must be at least 1, or 0 together with echo.", param="max_tokens")
    if body.prompt is None:
        raise InvalidRequest("The field 'prompt' is required.", param="prompt")


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    """The four forms of `prompt` as a list of texts and token lists."""
    prompt = body.prompt
    assert prompt is not None
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt must not be an empty list.", param="prompt")
    if set(map(type, prompt)) == {int}:
        return [cast("list[int]", prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MAX_PROMPTS} prompts, got {len(prompt)}.", param="prompt")
    prompts = [item for item in prompt if not isinstance(item, int)]
    if len(prompts) != len(prompt) or any(isinstance(item, str) != isinstance(prompts[0], str) for item in prompts):
        raise InvalidRequest("prompt must be a string, a list of strings, a list of token ids or a list of such lists.", param="prompt")
    return prompts


def _joined(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    if len(shapes) == 1:
        return shapes[0]
    return {name: [item for shape in shapes for item in shape[name]] for name in ("text_offset", "token_logprobs", "tokens", "top_logprobs")}

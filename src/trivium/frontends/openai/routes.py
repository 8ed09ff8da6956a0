"""The generation routes: read, parse, start, then one answer or a stream of chunks.

Nothing is sent before the first token has come, so that whatever is wrong with a request, the queue or the engine until then has its true
status. After the first byte an error is one more event, `data: {"error": …}`, and the stream ends without `[DONE]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from trivium.config import HttpConfig
from trivium.errors import RequestCancelled, TriviumError
from trivium.frontends.asgi import Receive, Scope, Send, header, send_bytes
from trivium.frontends.clients import client_of
from trivium.frontends.errors import as_trivium_error, error_body
from trivium.frontends.limits import parse_json, read_body
from trivium.frontends.openai.chat import ChatReply
from trivium.frontends.openai.completions import CompletionReply
from trivium.frontends.openai.merge import Batch, merged
from trivium.frontends.openai.schema import ChatBody, CompletionBody, GenerationBody, LaxChatBody, LaxCompletionBody
from trivium.frontends.request_timeout import timeout_of
from trivium.frontends.sse import DONE, DisconnectWatch, start_stream
from trivium.service import Generation, InferenceService, ModelInfo, Vocabulary
from trivium.types import GenerateRequest, PromptInfo, TokenEvent

B = TypeVar("B", bound=GenerationBody)


class Reply(Protocol):
    """What `CompletionReply` and `ChatReply` have in common."""

    include_usage: bool

    def requests(self) -> list[GenerateRequest]: ...

    def on_prompt(self, number: int, info: PromptInfo) -> None: ...

    def on_tokens(self, number: int, event: TokenEvent) -> None: ...

    def whole(self) -> bytes: ...

    def chunk(self, number: int, event: TokenEvent) -> bytes: ...

    def usage_chunk(self) -> bytes: ...


class GenerationRoute(Generic[B]):
    """An ASGI endpoint."""

    def __init__(
        self,
        service: InferenceService,
        config: HttpConfig,
        decoder: msgspec.json.Decoder[B],
        create_reply: Callable[[B, ModelInfo, HttpConfig, str | None, Vocabulary], Reply],
    ) -> None:
        self._service = service
        self._config = config
        self._decoder = decoder
        self._create_reply = create_reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config = self._config
        raw = await read_body(scope, receive, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s)
        body = parse_json(raw, self._decoder)
        model = self._service.model(body.model or "")
        vocabulary = self._service.vocabulary(model.name)
        reply = self._create_reply(body, model, config, scope.get("trivium.request_id"), vocabulary)
        requests = reply.requests()
        for request in requests:
            request.timeout_s = timeout_of(header(scope, b"x-request-timeout"))
            request.client = client_of(scope, config)
        generations = self._service.generate_all(requests)
        try:
            with DisconnectWatch(receive, lambda error: _fail_all(generations, error)):
                await _answer(send, reply, generations, body, vocabulary)
        finally:
            for generation in generations:
                await generation.aclose()


async def _answer(send: Send, reply: Reply, generations: list[Generation], body: GenerationBody, vocabulary: Vocabulary) -> None:
    for generation in generations:
        await generation.start()
    async with contextlib.aclosing(merged(generations)) as batches:
        if body.echo:
            batches = _with_prompt_texts(batches, vocabulary)
        if body.stream:
            await _stream(send, reply, batches)
        else:
            await _whole(send, reply, batches)


async def _with_prompt_texts(batches: AsyncIterator[Batch], vocabulary: Vocabulary) -> AsyncGenerator[Batch, None]:
    """Prompts that came as token ids are turned into text, for `echo`."""
    async for batch in batches:
        for _, event in batch:
            if isinstance(event, PromptInfo) and event.prompt is None:
                event.prompt = await vocabulary.detokenize(event.prompt_token_ids)
        yield batch


async def _whole(send: Send, reply: Reply, batches: AsyncIterator[Batch]) -> None:
    async for batch in batches:
        for number, event in batch:
            if isinstance(event, PromptInfo):
                reply.on_prompt(number, event)
            else:
                reply.on_tokens(number, event)
    await send_bytes(send, reply.whole())


async def _stream(send: Send, reply: Reply, batches: AsyncIterator[Batch]) -> None:
    has_started = False
    try:
        async for batch in batches:
            parts: list[bytes] = []
            for number, event in batch:
                if isinstance(event, PromptInfo):
                    reply.on_prompt(number, event)
                else:
                    parts.append(reply.chunk(number, event))
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if body:
                if not has_started:
                    has_started = True
                    await start_stream(send)
                await send({"type": "http.response.body", "body": body, "more_body": True})
    except Exception as error:
        if not has_started or isinstance(error, RequestCancelled):
            raise
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % error_body(as_trivium_error(error)), "more_body": False})
        return
    if not has_started:
        await start_stream(send)
    end = reply.usage_chunk() + DONE if reply.include_usage else DONE
    await send({"type": "http.response.body", "body": end, "more_body": False})


def _fail_all(generations: list[Generation], error: TriviumError) -> None:
    for generation in generations:
        generation.fail(error)


def completions_route(service: InferenceService, config: HttpConfig) -> GenerationRoute[CompletionBody]:
    body = LaxCompletionBody if config.ignore_unknown_fields else CompletionBody
    return GenerationRoute(service, config, msgspec.json.Decoder(body), CompletionReply)


def chat_route(service: InferenceService, config: HttpConfig) -> GenerationRoute[ChatBody]:
    body = LaxChatBody if config.ignore_unknown_fields else ChatBody
    return GenerationRoute(service, config, msgspec.json.Decoder(body), ChatReply)

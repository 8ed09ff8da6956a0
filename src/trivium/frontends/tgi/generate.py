"""`POST /generate`, `/generate_stream` and `/`: read, check, tokenize, then one answer or a stream of tokens.

Nothing is sent before the first token has come, so that whatever is wrong until then has its true status; TGI answers a stream with 200 and
an error event even for a malformed request. An error after that is one more event, and the stream ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from trivium.config import HttpConfig
from trivium.errors import ModelNotFound, RequestCancelled
from trivium.frontends.asgi import Headers, Receive, Scope, Send, encode_json, header, send_bytes
from trivium.frontends.clients import client_of
from trivium.frontends.errors import as_trivium_error
from trivium.frontends.limits import read_body
from trivium.frontends.openai.params import new_request_id
from trivium.frontends.request_timeout import timeout_of
from trivium.frontends.sse import DisconnectWatch
from trivium.frontends.tgi.errors import error_event
from trivium.frontends.tgi.reply import Prompt, Reply, Timer
from trivium.frontends.tgi.schema import GenerateBody, LaxGenerateBody, Parameters, Parser
from trivium.frontends.tgi.validation import RequestLimits, check, check_lengths
from trivium.service import GenerateEvent, Generation, InferenceService, ModelInfo
from trivium.types import PromptInfo

KEEP_ALIVE_S: Final = 15.0
"""A stream that is silent for this long gets a comment, as TGI's do, so that proxies don't cut it off."""
KEEP_ALIVE: Final = b":\n\n"
MAX_NAMED_FIELDS: Final = 10
MAX_FIELD_CHARS: Final = 64


AnswerAll = Callable[[list[Reply], list[Generation]], Awaitable[None]]
"""Reads the generations of these replies and sends what they make."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one route answers."""

    is_stream: bool = False
    is_array: bool = False
    returns_prompt: bool = False
    """Where the request does not say."""


class Generator:
    """What the generating routes of TGI share."""

    def __init__(self, service: InferenceService, config: HttpConfig) -> None:
        self.service = service
        self.config = config
        self.parse = Parser(GenerateBody, LaxGenerateBody)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        return await read_body(scope, receive, max_bytes=self.config.max_body_bytes, timeout_s=self.config.body_timeout_s)

    def model(self, name: str | None) -> ModelInfo:
        """TGI has one model and no field for its name: a name counts only if there is such a model."""
        with contextlib.suppress(ModelNotFound):
            return self.service.model(name or "")
        return self.service.model("")

    async def prepare(self, inputs: str, parameters: Parameters, model: ModelInfo, timer: Timer, kind: Kind) -> Reply:
        """Raises `InvalidRequest` with TGI's texts, or `Overloaded` before any work was put into the request."""
        limits = RequestLimits.of(self.config.tgi, model)
        check(inputs, parameters, limits, is_stream=kind.is_stream)
        self.service.check_room(model.name, parameters.best_of or 1)
        token_ids = await self.service.tokenize(model.name, inputs, is_bounded=parameters.truncate is None)
        return self.reply(inputs, token_ids, parameters, model, timer, kind)

    def reply(self, text: str, token_ids: list[int], parameters: Parameters, model: ModelInfo, timer: Timer, kind: Kind) -> Reply:
        """For a prompt whose tokens are known. Raises `InvalidRequest` for one that is too long."""
        kept = token_ids if parameters.truncate is None else token_ids[-parameters.truncate :]
        max_tokens = check_lengths(len(kept), parameters.max_new_tokens, RequestLimits.of(self.config.tgi, model))
        vocabulary = self.service.vocabulary(model.name)
        prompt = Prompt(text=text, token_ids=kept, max_tokens=max_tokens)
        return Reply(prompt, parameters, model, vocabulary, timer, is_stream=kind.is_stream, returns_prompt=kind.returns_prompt)

    async def run(self, scope: Scope, receive: Receive, replies: list[Reply], answer: AnswerAll) -> None:
        """Start the replies' requests, all or none, and hand them to `answer`; whatever happens, nothing is left of them."""
        request_id = scope.get("trivium.request_id") or new_request_id()
        timeout_s = timeout_of(header(scope, b"x-request-timeout"))
        client = client_of(scope, self.config)
        requests = [reply.request(f"tgi-{request_id}-{number}", timeout_s=timeout_s, client=client) for number, reply in enumerate(replies)]
        generations = self.service.generate_all(requests)

        def fail_all(error: Any) -> None:
            for generation in generations:
                generation.fail(error)

        try:
            with DisconnectWatch(receive, fail_all):
                for generation, reply in zip(generations, replies, strict=True):
                    await generation.start()
                    reply.timer.validate()
                await answer(replies, generations)
        finally:
            for generation in generations:
                await generation.aclose()


class Answer:
    """Writes one whole answer or one stream."""

    def __init__(self, send: Send, kind: Kind, compute_type: str, ignored: list[str]) -> None:
        self._send = send
        self._kind = kind
        self._compute_type = compute_type
        self._warning = warning_headers(ignored)

    async def __call__(self, replies: list[Reply], generations: list[Generation]) -> None:
        [reply], [generation] = replies, generations
        if self._kind.is_stream:
            await self._stream(reply, generation)
        else:
            async for event in generation:
                await reply.on_event(event)
            body = encode_json([reply.shape()] if self._kind.is_array else reply.shape())
            await send_bytes(self._send, body, headers=reply.compute_headers(self._compute_type) + reply.count_headers() + self._warning)

    async def _stream(self, reply: Reply, events: AsyncIterator[GenerateEvent]) -> None:
        send, alive = self._send, None
        try:
            async for event in events:
                if isinstance(event, PromptInfo):
                    await reply.on_prompt(event)
                    continue
                body = reply.chunk(event)
                if alive is None:
                    alive = KeepAlive(send)
                    await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers(reply)})
                alive.touch()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as error:
            if alive is None or isinstance(error, RequestCancelled):
                raise
            alive.close()
            await send({"type": "http.response.body", "body": error_event(as_trivium_error(error)), "more_body": False})
            return
        finally:
            if alive is not None:
                alive.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _stream_headers(self, reply: Reply) -> Headers:
        head: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        return head + reply.compute_headers(self._compute_type) + self._warning


class KeepAlive:
    """Sends a comment whenever `KEEP_ALIVE_S` have passed since `touch`, until it is closed."""

    def __init__(self, send: Send, interval_s: float = KEEP_ALIVE_S) -> None:
        self._send = send
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._touched_at = self._loop.time()
        self._timer = self._loop.call_later(interval_s, self._check)
        self._sending: asyncio.Task[None] | None = None

    def touch(self) -> None:
        self._touched_at = self._loop.time()

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        due_at = self._touched_at + self._interval_s
        if due_at <= self._loop.time():
            self.touch()
            due_at += self._interval_s
            self._sending = self._loop.create_task(self._comment())
        self._timer = self._loop.call_at(due_at, self._check)

    async def _comment(self) -> None:
        await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


def warning_headers(ignored: list[str]) -> Headers:
    """Names of fields that were ignored, as a `Warning` header (RFC 7234, code 299: any other warning)."""
    if not ignored:
        return []
    names = [name[:MAX_FIELD_CHARS].encode("ascii", "replace").decode() for name in ignored[:MAX_NAMED_FIELDS]]
    more = f" and {len(ignored) - MAX_NAMED_FIELDS} more" if len(ignored) > MAX_NAMED_FIELDS else ""
    text = ", ".join("".join(char if char.isprintable() and char not in '"\\' else "?" for char in name) for name in names)
    return [(b"warning", f'299 trivium "unknown fields were ignored: {text}{more}"'.encode())]


class GenerateRoute:
    """An ASGI endpoint: `/generate` or `/generate_stream`."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timer = Timer()
        ignored: list[str] = []
        body = self._generator.parse(await self._generator.read(scope, receive), ignored)
        await self.answer(scope, receive, send, body, ignored, timer, self._kind)

    async def answer(self, scope: Scope, receive: Receive, send: Send, body: GenerateBody, ignored: list[str], timer: Timer, kind: Kind) -> None:
        generator = self._generator
        model = generator.model(body.model)
        if body.model is not None and body.model != model.name:
            ignored.append("model")
        reply = await generator.prepare(body.inputs, body.settings, model, timer, kind)
        await generator.run(scope, receive, [reply], Answer(send, kind, generator.config.tgi.compute_type, ignored))


class CompatRoute(GenerateRoute):
    """`POST /`: what the client libraries use. Whole answers come in an array, and the prompt is part of the text unless the request says no."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator, Kind(is_array=True, returns_prompt=True))

    async def answer(self, scope: Scope, receive: Receive, send: Send, body: GenerateBody, ignored: list[str], timer: Timer, kind: Kind) -> None:
        chosen = Kind(is_stream=bool(body.stream), is_array=not body.stream, returns_prompt=kind.returns_prompt)
        await super().answer(scope, receive, send, body, ignored, timer, chosen)

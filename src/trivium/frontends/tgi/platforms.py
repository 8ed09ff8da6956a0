"""The routes that two cloud platforms call: SageMaker's `/invocations` and Vertex AI's `/vertex`."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from trivium.errors import InvalidRequest
from trivium.frontends.asgi import Handler, Receive, Scope, Send, encode_json, send_bytes
from trivium.frontends.errors import send_error
from trivium.frontends.limits import parse_json
from trivium.frontends.openai.merge import merged
from trivium.frontends.openai.params import chat_messages
from trivium.frontends.replay import replay
from trivium.frontends.tgi.errors import TgiError
from trivium.frontends.tgi.generate import CompatRoute, Generator, Kind, warning_headers
from trivium.frontends.tgi.reply import Reply, Timer
from trivium.frontends.tgi.schema import LaxVertexChat, Parser, VertexBody, VertexChat
from trivium.frontends.tgi.tokenization import object_keys
from trivium.frontends.tgi.validation import RequestLimits, check
from trivium.service import ChatPrompt, Generation, ModelInfo

MAX_INSTANCES: Final = 1024


class InvocationsRoute:
    """An ASGI endpoint: a body with `inputs` is generated from as `POST /` does, one with `messages` or `prompt` goes to OpenAI's routes."""

    def __init__(self, generator: Generator, *, chat: Handler, completions: Handler) -> None:
        self._generator = generator
        self._compat = CompatRoute(generator)
        self._others = {"messages": chat, "prompt": completions}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await self._generator.read(scope, receive)
        keys = object_keys(raw)
        name = next((name for name in self._others if name in keys), None)
        if "inputs" in keys or name is None:
            await self._compat(scope, replay(raw, receive), send)
            return
        scope["trivium.send_error"] = send_error
        await self._others[name](scope, replay(raw, receive), send)


class VertexRoute:
    """An ASGI endpoint: `{"instances": […]}` → `{"predictions": [text, …]}`. Each instance is a TGI body or a conversation; all of
    an instance's parameters count."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._decoder = msgspec.json.Decoder(VertexBody)
        self._parse_chat = Parser(VertexChat, LaxVertexChat)
        self._kind = Kind()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        instances = parse_json(await self._generator.read(scope, receive), self._decoder).instances
        limit = self._generator.config.tgi.max_client_batch_size or MAX_INSTANCES
        if len(instances) > limit:
            raise TgiError(422, "batch size exceeded", f"Number of instances exceeds the maximum allowed batch size of {limit}")
        if not instances:
            raise InvalidRequest("`instances` cannot be empty", param="instances")
        model = self._generator.model(None)
        ignored: list[str] = []
        self._generator.service.check_room(model.name, len(instances))
        replies = [await self._reply(bytes(raw), place, model, ignored) for place, raw in enumerate(instances)]

        async def answer(replies: list[Reply], generations: list[Generation]) -> None:
            async with contextlib.aclosing(merged(generations)) as batches:
                async for batch in batches:
                    for number, event in batch:
                        await replies[number].on_event(event)
            body = encode_json({"predictions": [reply.text() for reply in replies]})
            await send_bytes(send, body, headers=warning_headers(ignored))

        await self._generator.run(scope, receive, replies, answer)

    async def _reply(self, raw: bytes, place: int, model: ModelInfo, ignored: list[str]) -> Reply:
        generator, where, timer = self._generator, f"instances[{place}].", Timer()
        if "messages" not in object_keys(raw):
            body = generator.parse(raw, ignored, where=where)
            return await generator.prepare(body.inputs, body.settings, model, timer, self._kind)
        chat = self._parse_chat(raw, ignored, where=where)
        messages = chat_messages(chat.messages)
        parameters = chat.settings
        check("messages", parameters, RequestLimits.of(generator.config.tgi, model), is_stream=False)
        token_ids = await generator.service.tokenize_chat(model.name, ChatPrompt(messages=messages))
        return generator.reply("", token_ids, parameters, model, timer, self._kind)

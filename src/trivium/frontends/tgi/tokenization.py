"""`POST /tokenize` with TGI's body, and `POST /chat_tokenize`."""

from __future__ import annotations

from typing import Any

import msgspec

from trivium.errors import InvalidRequest
from trivium.frontends.asgi import Handler, Receive, Scope, Send, encode_json, send_bytes
from trivium.frontends.openai.params import chat_messages
from trivium.frontends.replay import replay
from trivium.frontends.tgi.errors import send_tgi_error, template_error
from trivium.frontends.tgi.generate import Generator, warning_headers
from trivium.frontends.tgi.schema import ChatTokenizeBody, LaxChatTokenizeBody, Parser
from trivium.service import ChatPrompt
from trivium.types import TextSpan

_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TokenizeRoute:
    """An ASGI endpoint for both APIs: a body with `inputs` is TGI's, any other is `other`'s to answer."""

    def __init__(self, generator: Generator, other: Handler) -> None:
        self._generator = generator
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await self._generator.read(scope, receive)
        if "inputs" not in object_keys(raw):
            await self._other(scope, replay(raw, receive), send)
            return
        scope["trivium.send_error"] = send_tgi_error
        ignored: list[str] = []
        body = self._generator.parse(raw, ignored)
        model = self._generator.model(body.model)
        spans = await self._generator.service.spans(model.name, body.inputs)
        await send_bytes(send, encode_json(span_shapes(body.inputs, spans)), headers=warning_headers(ignored))


class ChatTokenizeRoute:
    """An ASGI endpoint."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._parse = Parser(ChatTokenizeBody, LaxChatTokenizeBody)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._generator.service
        # A chat request is sent here as it is, with sampling fields that its prompt does not depend on.
        body = self._parse(await self._generator.read(scope, receive), [])
        if body.tools:
            raise InvalidRequest("tools are not supported yet", param="tools")
        model = self._generator.model(body.model)
        prompt = ChatPrompt(messages=chat_messages(body.messages))
        try:
            text = await service.render_chat(model.name, prompt)
        except InvalidRequest as error:
            raise template_error(error.message) from None
        spans = await service.spans(model.name, text, add_special_tokens=False)
        await send_bytes(send, encode_json({"tokenize_response": span_shapes(text, spans), "templated_text": text}))


def object_keys(raw: bytes) -> frozenset[str]:
    """Keys of a JSON object; none for what is no object."""
    try:
        return frozenset(_KEYS.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return frozenset()


def span_shapes(text: str, spans: list[TextSpan]) -> list[dict[str, Any]]:
    """`start` and `stop` count characters, so that `text` is what the client finds there, whatever the script."""
    return [{"id": span.token_id, "text": text[span.start : span.stop], "start": span.start, "stop": span.stop} for span in spans]

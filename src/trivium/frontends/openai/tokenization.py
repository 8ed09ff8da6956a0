"""`POST /tokenize` and `POST /detokenize`, as in vLLM."""

from __future__ import annotations

import msgspec

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest
from trivium.frontends.asgi import Receive, Scope, Send, send_json
from trivium.frontends.limits import parse_json, read_body
from trivium.frontends.openai.chat import check_template_fields
from trivium.frontends.openai.params import chat_messages
from trivium.frontends.openai.refusals import refuse_unsupported
from trivium.frontends.openai.schema import DetokenizeBody, LaxDetokenizeBody, LaxTokenizeBody, TokenizeBody
from trivium.service import ChatPrompt, InferenceService


class TokenizeRoute:
    """An ASGI endpoint."""

    def __init__(self, service: InferenceService, config: HttpConfig) -> None:
        self._service = service
        self._config = config
        self._decoder = msgspec.json.Decoder(LaxTokenizeBody if config.ignore_unknown_fields else TokenizeBody)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config = self._config
        raw = await read_body(scope, receive, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s)
        body = parse_json(raw, self._decoder)
        refuse_unsupported(body)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("Exactly one of prompt and messages must be given.", param="prompt")
        model = body.model or ""
        info = self._service.model(model)
        token_ids = await self._tokenize(model, body)
        strings = await self._service.vocabulary(model).spell(token_ids) if body.return_token_strs else None
        shape = {"count": len(token_ids), "max_model_len": info.max_model_len, "tokens": token_ids, "token_strs": strings}
        await send_json(send, shape)

    async def _tokenize(self, model: str, body: TokenizeBody) -> list[int]:
        if body.prompt is not None:
            return await self._service.tokenize(model, body.prompt, add_special_tokens=body.add_special_tokens is not False)
        check_template_fields(
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template=body.chat_template,
            chat_template_kwargs=body.chat_template_kwargs,
            config=self._config,
        )
        prompt = ChatPrompt(
            messages=chat_messages(body.messages),
            add_generation_prompt=not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            add_special_tokens=bool(body.add_special_tokens),
            chat_template=body.chat_template,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return await self._service.tokenize_chat(model, prompt)


class DetokenizeRoute:
    """An ASGI endpoint."""

    def __init__(self, service: InferenceService, config: HttpConfig) -> None:
        self._service = service
        self._config = config
        self._decoder = msgspec.json.Decoder(LaxDetokenizeBody if config.ignore_unknown_fields else DetokenizeBody)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        config = self._config
        raw = await read_body(scope, receive, max_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s)
        body = parse_json(raw, self._decoder)
        await send_json(send, {"prompt": await self._service.detokenize(body.model or "", body.tokens)})

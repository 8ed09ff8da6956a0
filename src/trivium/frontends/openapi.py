"""The OpenAPI document. Request bodies come from the structs that parse them, so that the two can't differ."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trivium import __version__
from trivium.frontends.errors import ErrorBody
from trivium.frontends.kserve import openapi as kserve
from trivium.frontends.openai.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from trivium.frontends.tgi import openapi as tgi

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "The request is wrong; `param` names the field.",
    "401": "The API key is missing or not valid.",
    "404": "There is no such model.",
    "408": "The request's body did not arrive in time.",
    "413": "The request's body is too large.",
    "415": "The request's body is compressed.",
    "429": "The queue is full; see `Retry-After`.",
    "500": "Something went wrong inside the server.",
    "503": "The server is starting or shutting down, or the engine is being restarted; see `Retry-After`.",
    "504": "The request did not finish within its time.",
}

_REQUIRED: Final = {"CompletionBody": ("prompt",), "ChatBody": ("messages",)}
"""Fields that the structs leave open, so that their absence has a message of its own."""

_STRING: Final[Json] = {"type": "string"}
_INTEGER: Final[Json] = {"type": "integer"}
_NUMBER: Final[Json] = {"type": "number"}
_ANY: Final[Json] = {}


def _object(**properties: Json) -> Json:
    """Every property is required; those that may be null say so."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def _chunk(head: Json, choice: Json) -> Json:
    """Usage comes only where it was asked for."""
    chunk = _object(**head, choices=_list(choice))
    chunk["properties"]["usage"] = _nullable(_ref("Usage"))
    return chunk


def _answers() -> Json:
    """Schemas of answers."""
    reasons: Json = {"enum": ["stop", "length", "abort", "error"]}
    token = _object(token=_STRING, logprob=_NUMBER, bytes=_list(_INTEGER))
    chat_token = _object(token=_STRING, logprob=_NUMBER, bytes=_list(_INTEGER), top_logprobs=_list(token))
    completion_logprobs = _object(
        text_offset=_list(_INTEGER),
        token_logprobs=_list(_nullable(_NUMBER)),
        tokens=_list(_STRING),
        top_logprobs=_list(_nullable({"type": "object", "additionalProperties": _NUMBER})),
    )
    chat_logprobs = _object(content=_list(chat_token), refusal=_nullable(_STRING))
    stop_reason = _nullable({"anyOf": [_STRING, _INTEGER]})
    completion_choice = _object(
        index=_INTEGER, text=_STRING, logprobs=_nullable(completion_logprobs), finish_reason=_nullable(reasons), stop_reason=stop_reason
    )
    message = _object(role=_STRING, content=_nullable(_STRING), refusal=_nullable(_STRING))
    chat_choice = _object(
        index=_INTEGER, message=message, logprobs=_nullable(chat_logprobs), finish_reason=_nullable(reasons), stop_reason=stop_reason
    )
    delta: Json = {"type": "object", "properties": {"role": _STRING, "content": _STRING}}
    chunk_choice = _object(index=_INTEGER, delta=delta, logprobs=_nullable(chat_logprobs), finish_reason=_nullable(reasons))
    head: Json = {"id": _STRING, "object": _STRING, "created": _INTEGER, "model": _STRING}
    usage = _object(prompt_tokens=_INTEGER, completion_tokens=_INTEGER, total_tokens=_INTEGER, prompt_tokens_details=_object(cached_tokens=_INTEGER))
    model = _object(id=_STRING, object=_STRING, created=_INTEGER, owned_by=_STRING, root=_STRING, parent=_ANY, max_model_len=_INTEGER)
    return {
        "Usage": usage,
        "Completion": _object(**head, choices=_list(completion_choice), usage=_ref("Usage"), system_fingerprint=_STRING),
        "ChatCompletion": _object(**head, choices=_list(chat_choice), usage=_ref("Usage"), system_fingerprint=_STRING),
        "CompletionChunk": _chunk(head, completion_choice),
        "ChatCompletionChunk": _chunk(head, chunk_choice),
        "Model": model,
        "ModelList": _object(object=_STRING, data=_list(_ref("Model"))),
        "Tokens": _object(count=_INTEGER, max_model_len=_INTEGER, tokens=_list(_INTEGER), token_strs=_nullable(_list(_STRING))),
        "Text": _object(prompt=_STRING),
        "Version": _object(version=_STRING),
    }


def _content(schema: Json, media_type: str = "application/json") -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _errors(*statuses: str) -> Json:
    return {status: {"description": _ERRORS[status], **_content(_ref("ErrorBody"))} for status in statuses}


def _post(summary: str, body: str, answer: Json, *, chunk: str | None = None) -> Json:
    ok: Json = {"description": "The answer.", **_content(answer)}
    if chunk is not None:
        ok["description"] = "The answer; with `stream: true` a stream of chunks as server-sent events, ended by `data: [DONE]`."
        ok["content"]["text/event-stream"] = {"schema": _ref(chunk)}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, **_content(_ref(body))},
            "responses": {"200": ok, **_errors(*_ERRORS)},
        }
    }


def _get(summary: str, answer: Json | None, *, media_type: str = "application/json", errors: tuple[str, ...] = (), is_public: bool = False) -> Json:
    ok: Json = {"description": "The answer." if answer is not None else "Yes; the body is empty."}
    if answer is not None:
        ok |= _content(answer, media_type)
    operation: Json = {"summary": summary, "responses": {"200": ok, **_errors(*errors)}}
    if is_public:
        operation["security"] = []
    return {"get": operation}


def _paths() -> Json:
    model_name: Json = {"name": "model", "in": "path", "required": True, "schema": _STRING}
    text = "text/plain"
    return {
        "/v1/completions": _post("Continue a text", "CompletionBody", _ref("Completion"), chunk="CompletionChunk"),
        "/v1/chat/completions": _post("Answer a conversation", "ChatBody", _ref("ChatCompletion"), chunk="ChatCompletionChunk"),
        "/v1/models": _get("Models that can be used", _ref("ModelList"), errors=("401",)),
        "/v1/models/{model}": {**_get("One model", _ref("Model"), errors=("401", "404", "503")), "parameters": [model_name]},
        "/tokenize": _post("Text or conversation to token ids; a body with `inputs` is TGI's", "TokenizeBody", _ref("Tokens")),
        "/detokenize": _post("Token ids to text", "DetokenizeBody", _ref("Text")),
        "/health": _get("Are models loaded and their engines running?", None, errors=("503",), is_public=True),
        "/livez": _get("Does the process answer?", _STRING, media_type=text, is_public=True),
        "/readyz": _get("Did every engine answer a probe?", _STRING, media_type=text, errors=("503",), is_public=True),
        "/version": _get("Version of the server", _ref("Version"), errors=("401",)),
        "/metrics": _get("Prometheus metrics", _STRING, media_type=text, is_public=True),
        "/docs": _get("This description as a page", _STRING, media_type="text/html", errors=("401",)),
        "/openapi.json": _get("This description", {"type": "object"}, errors=("401",)),
        **tgi.paths(),
        **kserve.paths(),
    }


def openapi_document(root_path: str = "") -> Json:
    """OpenAPI 3.1."""
    bodies = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody, ErrorBody, *tgi.BODIES, *kserve.BODIES)
    _, components = msgspec.json.schema_components(bodies, ref_template=_REF)
    for name, fields in _REQUIRED.items():
        components[name]["required"] = sorted({*components[name].get("required", ()), *fields})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trivium",
            "version": __version__,
            "description": "The OpenAI API with vLLM's extra fields, TGI's, and KServe v2 with Triton's extensions.",
        },
        "servers": [{"url": root_path or "/"}],
        "paths": _paths(),
        "components": {
            "schemas": {**components, **_answers(), **tgi.schemas()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }

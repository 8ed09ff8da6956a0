"""TGI's part of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from trivium.frontends.tgi.errors import TgiErrorBody
from trivium.frontends.tgi.schema import ChatTokenizeBody, GenerateBody, Parameters

Json = dict[str, Any]

BODIES: Final = (GenerateBody, Parameters, ChatTokenizeBody, TgiErrorBody)
"""Structs that the paths refer to."""
_REF: Final = "#/components/schemas/{name}"
_STRING: Final[Json] = {"type": "string"}
_INTEGER: Final[Json] = {"type": "integer"}
_NUMBER: Final[Json] = {"type": "number"}
_ERRORS: Final = {
    "400": "The body is no JSON.",
    "401": "The API key is missing or not valid.",
    "413": "The body is too large.",
    "422": "The request is wrong; the message names the field.",
    "424": "The request failed during generation.",
    "429": "The queue is full; see `Retry-After`.",
    "503": "The server is not healthy; see `Retry-After`.",
    "504": "The request did not finish within its time.",
}


def _object(required: tuple[str, ...] = (), **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required or properties)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def schemas() -> Json:
    """Schemas of answers."""
    reason: Json = {"enum": ["length", "eos_token", "stop_sequence"]}
    seed = _nullable(_INTEGER)
    token = _object(id=_INTEGER, text=_STRING, logprob=_NUMBER, special={"type": "boolean"})
    tokens: Json = {"prefill": _list(_ref("TgiPrefillToken")), "tokens": _list(_ref("TgiToken")), "top_tokens": _list(_list(_ref("TgiToken")))}
    ends: Json = {"finish_reason": reason, "generated_tokens": _INTEGER, "seed": seed}
    always = ("finish_reason", "generated_tokens", "seed", "prefill", "tokens")
    sequence = _object(("generated_text", *always), generated_text=_STRING, **ends, **tokens)
    details = _object(always, **ends, **tokens, best_of_sequences=_list(_ref("TgiSequence")))
    stream_details = _object(**ends, input_length=_INTEGER)
    return {
        "TgiToken": token,
        "TgiPrefillToken": _object(id=_INTEGER, text=_STRING, logprob=_nullable(_NUMBER)),
        "TgiSequence": sequence,
        "TgiDetails": details,
        "TgiAnswer": _object(("generated_text",), generated_text=_STRING, details=_ref("TgiDetails")),
        "TgiEvent": _object(
            ("index", "token", "generated_text", "details"),
            index=_INTEGER,
            token=_ref("TgiToken"),
            top_tokens=_list(_ref("TgiToken")),
            generated_text=_nullable(_STRING),
            details=_nullable(stream_details),
        ),
        "TgiSpan": _object(id=_INTEGER, text=_STRING, start=_INTEGER, stop=_INTEGER),
    }


def _content(schema: Json, media_type: str = "application/json") -> Json:
    return {"content": {media_type: {"schema": schema}}}


def _errors(*statuses: str) -> Json:
    return {status: {"description": _ERRORS[status], **_content(_ref("TgiErrorBody"))} for status in statuses}


def _post(summary: str, body: Json, answer: Json | None, *, event: Json | None = None) -> Json:
    ok: Json = {"description": "The answer.", "content": {}}
    if answer is not None:
        ok["content"]["application/json"] = {"schema": answer}
    if event is not None:
        ok["content"]["text/event-stream"] = {"schema": event}
    return {"post": {"summary": summary, "requestBody": {"required": True, **_content(body)}, "responses": {"200": ok, **_errors(*_ERRORS)}}}


def _health(summary: str) -> Json:
    return {"get": {"summary": summary, "responses": {"200": {"description": "Yes; the body is empty."}, **_errors("503")}, "security": []}}


def paths() -> Json:
    body, answer, event = _ref("GenerateBody"), _ref("TgiAnswer"), _ref("TgiEvent")
    instances = _object(instances=_list({"anyOf": [body, {"type": "object"}]}))
    chat_tokens = _object(tokenize_response=_list(_ref("TgiSpan")), templated_text=_STRING)
    info = {
        "get": {
            "summary": "Model and limits, as TGI tells them",
            "responses": {"200": {"description": "The answer.", **_content({"type": "object"})}},
        }
    }
    return {
        "/generate": _post("Continue a text (TGI)", body, answer),
        "/generate_stream": _post("Continue a text, token by token (TGI)", body, None, event=event),
        "/": {**_post("Continue a text (TGI); an array, or a stream with `stream: true`", body, _list(answer), event=event), **_health("As /ping")},
        "/ping": _health("Are models loaded and their engines running?"),
        "/info": info,
        "/chat_tokenize": _post("A conversation as text and tokens (TGI)", _ref("ChatTokenizeBody"), chat_tokens),
        "/invocations": _post("SageMaker: a body of /, /v1/chat/completions or /v1/completions", {"type": "object"}, {}, event=event),
        "/vertex": _post("Vertex AI: several bodies at once", instances, _object(predictions=_list(_STRING))),
    }

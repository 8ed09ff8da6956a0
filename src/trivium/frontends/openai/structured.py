"""Structured output as requests ask for it: OpenAI's `response_format`, TGI's in its place, vLLM's `structured_outputs`, the older `guided_*`."""

from __future__ import annotations

from typing import Any, Final, cast

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, UnknownField, UnsupportedFeature
from trivium.frontends.openai.schema import GenerationBody
from trivium.types import StructuredOutputsParams

GUIDED: Final = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
TYPES: Final[dict[str, Any]] = {
    "json": (dict, str, bool),
    "regex": str,
    "choice": list,
    "grammar": str,
    "json_object": bool,
    "disable_any_whitespace": bool,
    "whitespace_pattern": str,
}
"""Fields of `structured_outputs` that are honoured."""


def structured_outputs_of(body: GenerationBody, config: HttpConfig) -> StructuredOutputsParams | None:
    """None if the answer may look as it likes. Raises `InvalidRequest` naming the field."""
    found: dict[str, StructuredOutputsParams] = {}
    if body.response_format is not None and (wanted := _response_format(body.response_format)) is not None:
        found["response_format"] = wanted
    if body.structured_outputs is not None:
        found["structured_outputs"] = _structured_outputs(body.structured_outputs)
    for name, kind in GUIDED.items():
        if (value := getattr(body, name)) is not None:
            found[name] = _build({kind: value, "whitespace_pattern": body.guided_whitespace_pattern}, name)
    if body.guided_whitespace_pattern is not None and not found.keys() & GUIDED.keys():
        raise InvalidRequest("guided_whitespace_pattern needs one of the other guided_ fields.", param="guided_whitespace_pattern")
    if len(found) > 1:
        raise InvalidRequest(f"{' and '.join(found)} exclude each other.", param=list(found)[1])
    for name, wanted in found.items():
        if config.tgi.disable_grammar_support:
            raise UnsupportedFeature(f"{name} is not supported: this server was started without grammars.", param=name)
        return wanted
    return None


def _response_format(value: Any) -> StructuredOutputsParams | None:
    if not isinstance(value, dict):
        raise InvalidRequest("response_format must be an object.", param="response_format")
    given = cast("dict[str, Any]", value)
    match given.get("type"):
        case "text":
            return None
        case "json_object" | "json" | "regex" | "json_schema" if "value" in given:
            return grammar_of(given, "response_format")
        case "json_schema":
            schema = _schema_in(given.get("json_schema", {}), "response_format.json_schema")
            return _build({"json": schema}, "response_format.json_schema.schema")
        case "json_object":
            return _build({"json_object": True}, "response_format")
        case "structural_tag":
            raise UnsupportedFeature("response_format: structural tags are not supported.", param="response_format.type")
        case kind:
            message = f"response_format.type must be text, json_object or json_schema, got {kind!r}."
            raise InvalidRequest(message, param="response_format.type")


def grammar_of(given: dict[str, Any], where: str) -> StructuredOutputsParams:
    """TGI's form: `{"type": "json" | "json_object" | "regex" | "json_schema", "value": …}`. Raises `InvalidRequest`."""
    value = given.get("value")
    match given.get("type"):
        case "json" | "json_object" if isinstance(value, dict | str):
            return _build({"json": value}, where)
        case "regex" if isinstance(value, str):
            return _build({"regex": value}, where)
        case "json_schema" if isinstance(value, dict):
            return _build({"json": _schema_in(cast("dict[str, Any]", value), f"{where}.value")}, where)
        case _:
            raise UnsupportedFeature("grammar is not supported", param=where)


def _schema_in(value: Any, where: str) -> Any:
    """The schema in OpenAI's `{"name", "description", "schema", "strict"}`.

    A schema is always kept to the letter, so that `strict` has nothing to add.
    """
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object.", param=where)
    given = cast("dict[str, Any]", value)
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if given.get(name) is not None and not isinstance(given[name], kind):
            raise InvalidRequest(f"{where}.{name} has a wrong type.", param=f"{where}.{name}")
    unknown = next((name[:64] for name in given if name not in ("name", "description", "schema", "strict")), None)
    if unknown is not None:
        raise UnknownField(f"{where}: unknown field {unknown!r}.", param=f"{where}.{unknown}")
    if given.get("schema") is None:
        raise InvalidRequest(f"{where}.schema is missing.", param=f"{where}.schema")
    return given["schema"]


def _structured_outputs(value: Any) -> StructuredOutputsParams:
    if not isinstance(value, dict):
        raise InvalidRequest("structured_outputs must be an object.", param="structured_outputs")
    given = {name: inner for name, inner in cast("dict[str, Any]", value).items() if inner is not None and (inner is not False or name == "json")}
    for name in given:
        if name not in TYPES:
            raise UnsupportedFeature(f"structured_outputs.{name[:64]} is not supported.", param=f"structured_outputs.{name[:64]}")
    return _build(given, "structured_outputs")


def _build(values: dict[str, Any], where: str) -> StructuredOutputsParams:
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        is_right = isinstance(value, TYPES[name])
        if name == "choice" and is_right:
            is_right = all(isinstance(text, str) for text in value)
        if not is_right:
            raise InvalidRequest(f"{where}: {name} has a wrong type.", param=where)
    return StructuredOutputsParams(**given, origin=where)

"""JSON schemas as requests bring them, made ready for a grammar: nothing in them may be overlooked.

Keywords are those of the drafts from 4 to 2020-12 that llguidance knows: it honours some and refuses others by name, but passes over all it
has never heard of, and a misspelt `requird` would do nothing.
"""

from __future__ import annotations

from typing import Any, Final, cast

from trivium.errors import InvalidRequest

_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas."""
_LISTS: Final = ("prefixItems", "anyOf", "allOf", "oneOf", "items")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_ASSERTIONS: Final = (
    *("type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("dependencies", "dependentRequired", "unevaluatedItems", "unevaluatedProperties", "$ref", "$dynamicRef", "$recursiveRef"),
)
_ANNOTATIONS: Final = (
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "externalDocs", "xml"),
    *("$schema", "$id", "id", "$comment", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
    *("contentMediaType", "contentEncoding", "contentSchema"),
)
"""Say nothing about what is valid; some are OpenAPI's."""
KNOWN: Final = frozenset((*_BY_NAME, *_LISTS, *_SINGLE, *_ASSERTIONS, *_ANNOTATIONS))
_EXACT: Final = frozenset(("oneOf", "$defs", "definitions", "not", "if"))
"""Where a narrower schema is not a stricter one, or might be used where it isn't."""


def prepare_schema(schema: dict[str, Any], *, param: str) -> dict[str, Any]:
    """A copy in which what has `properties` or `required` and no type is an object, as its authors mean and JSON Schema doesn't.

    Raises `InvalidRequest` naming the first keyword that is unknown, and where it is. Names that begin with x- are anybody's notes.
    """
    return _prepare(schema, "", param, is_exact=False)


def _prepare(schema: dict[str, Any], where: str, param: str, *, is_exact: bool) -> dict[str, Any]:
    prepared: dict[str, Any] = {}
    for name, value in schema.items():
        if name.startswith("x-") or (name == "uniqueItems" and value is False):
            continue
        if name not in KNOWN:
            message = f'grammar is not valid: unknown keyword "{name[:64]}" at {where[:256] or "the top"} of the schema'
            raise InvalidRequest(message, param=param)
        prepared[name] = _inner(name, value, f"{where}/{name}", param, is_exact=is_exact or name in _EXACT)
    is_object = "properties" in schema or "required" in schema
    if is_object and not is_exact and not schema.keys() & {"type", "$ref", "const", "enum"}:
        prepared["type"] = "object"
    return prepared


def _inner(name: str, value: Any, where: str, param: str, *, is_exact: bool) -> Any:
    """The schemas in a keyword's value prepared, anything else as it is."""
    if name in _BY_NAME and isinstance(value, dict):
        schemas = cast("dict[str, Any]", value)
        return {key: _each(inner, f"{where}/{key}", param, is_exact=is_exact) for key, inner in schemas.items()}
    if name in _LISTS and isinstance(value, list):
        return [_each(inner, f"{where}/{index}", param, is_exact=is_exact) for index, inner in enumerate(cast("list[Any]", value))]
    return _each(value, where, param, is_exact=is_exact) if name in _SINGLE else value


def _each(schema: Any, where: str, param: str, *, is_exact: bool) -> Any:
    return _prepare(cast("dict[str, Any]", schema), where, param, is_exact=is_exact) if isinstance(schema, dict) else schema

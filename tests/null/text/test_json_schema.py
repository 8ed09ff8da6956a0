"""Schemas before they become grammars: misspelt keywords are found wherever they are, and what is meant as an object is one."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.errors import InvalidRequest
from trivium.text.json_schema import prepare_schema

OBJECT = {"properties": {"a": {"type": "integer"}}}


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    return prepare_schema(schema, param="guided_json")


@pytest.mark.parametrize(
    ("schema", "keyword", "where"),
    [
        ({"propertys": {}}, "propertys", "the top"),
        ({"type": "object", "requird": ["a"]}, "requird", "the top"),
        ({"properties": {"a": {"minLenght": 3}}}, "minLenght", "/properties/a"),
        ({"patternProperties": {"^x": {"Type": "integer"}}}, "Type", "/patternProperties/^x"),
        ({"additionalProperties": {"nullable": True}}, "nullable", "/additionalProperties"),
        ({"items": {"anyOf": [{}, {"maximun": 3}]}}, "maximun", "/items/anyOf/1"),
        ({"items": [{"maximun": 3}]}, "maximun", "/items/0"),
        ({"prefixItems": [{}, {"maximun": 3}]}, "maximun", "/prefixItems/1"),
        ({"$defs": {"n": {"oneOf": [{"allOf": [{"typ": 1}]}]}}}, "typ", "/$defs/n/oneOf/0/allOf/0"),
        ({"not": {"typ": 1}}, "typ", "/not"),
        ({"k" * 1000: 1}, "k" * 64, "the top"),
    ],
)
def test_unknown_keywords_are_named(schema: dict[str, Any], keyword: str, where: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prepared(schema)
    assert refused.value.message == f'grammar is not valid: unknown keyword "{keyword}" at {where} of the schema'
    assert refused.value.param == "guided_json"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"propertys": {"const": {"requird": 1}}}, "required": ["propertys"]},
        {"enum": [{"typ": 1}], "default": {"typ": 1}, "examples": [{"typ": 1}], "description": "x", "title": "y", "deprecated": True},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "$comment": "y", "type": "array", "items": [True, False]},
        {"oneOf": [{"$ref": "#/$defs/a"}], "discriminator": {"propertyName": "kind"}, "$defs": {"a": {"type": "null"}}},
        {"type": 5, "properties": [], "items": 3, "anyOf": {}},
    ],
)
def test_what_is_no_schema_and_no_assertion_is_left_alone(schema: dict[str, Any]) -> None:
    assert prepared(schema) == schema


def test_notes_and_what_asks_for_nothing_are_dropped() -> None:
    assert prepared({"type": "array", "uniqueItems": False, "x-order": 3}) == {"type": "array"}
    assert prepared({"uniqueItems": True}) == {"uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OBJECT, {**OBJECT, "type": "object"}),
        ({"required": ["a"]}, {"required": ["a"], "type": "object"}),
        ({"type": ["object", "null"], **OBJECT}, {"type": ["object", "null"], **OBJECT}),
        ({"type": "array", "items": OBJECT}, {"type": "array", "items": {**OBJECT, "type": "object"}}),
        ({"anyOf": [OBJECT, {"type": "null"}]}, {"anyOf": [{**OBJECT, "type": "object"}, {"type": "null"}]}),
        ({"properties": {"b": OBJECT}}, {"properties": {"b": {**OBJECT, "type": "object"}}, "type": "object"}),
        # Narrower alternatives of oneOf would no longer exclude each other; a definition may be used in one.
        ({"oneOf": [OBJECT, {"items": OBJECT}]}, {"oneOf": [OBJECT, {"items": OBJECT}]}),
        ({"$defs": {"a": OBJECT}, "$ref": "#/$defs/a", "required": ["a"]}, {"$defs": {"a": OBJECT}, "$ref": "#/$defs/a", "required": ["a"]}),
    ],
)
def test_properties_without_a_type_mean_an_object(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prepared(schema) == expected

"""JSON schemas as they are met in use, one construct a case, each with answers that must be possible and answers that must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "city"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string", "format": "email"}},
            "required": ["name"],
        },
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer", "minimum": 1}, "price": {"type": "number", "minimum": 0}},
                "required": ["sku", "quantity", "price"],
                "additionalProperties": False,
            },
        },
        "paid": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["id", "lines", "paid"],
    "additionalProperties": False,
}
TOOLS = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": {
                    "type": "object",
                    "properties": {argument: {"type": "string"} for argument in arguments},
                    "required": arguments,
                    "additionalProperties": False,
                },
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, arguments in (("get_weather", ["city", "unit"]), ("search", ["query"]), ("send_mail", ["to", "subject", "body"]))
    ]
}


@dataclass(frozen=True)
class SchemaCase:
    name: str
    schema: Any
    valid: list[str]
    """Texts, compact: as they would be written without blanks."""
    invalid: list[str] = field(default_factory=list)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CASES = [
    SchemaCase("any", {}, ["1", '{"a":[null]}'], ["tru"]),
    SchemaCase("object", {"type": "object"}, ["{}", '{"a":{"b":[1,2.5e3,"x"]}}'], ["[]", "1"]),
    SchemaCase(
        "flat", ADDRESS, ['{"street":"Rue 1","city":"Paris","zip":"75001"}'], ['{"street":"Rue 1"}', '{"street":"a","city":"b","zip":"7500"}']
    ),
    SchemaCase(
        "nested order",
        ORDER,
        ['{"id":"3fa85f64-5717-4562-b3fc-2c963f66afa6","lines":[{"sku":"A-1","quantity":2,"price":9.5}],"paid":true}'],
        ['{"id":"x"}'],
    ),
    SchemaCase("recursion", TREE, ['{"value":1,"children":[{"value":2,"children":[]}]}'], ['{"children":[]}']),
    SchemaCase("tools", TOOLS, ['{"name":"search","arguments":{"query":"cats"}}'], ['{"name":"search","arguments":{"city":"x"}}']),
    SchemaCase("enum", {"enum": ["red", "green", 3, None, True]}, ['"red"', "3", "null"], ['"blue"', "4"]),
    SchemaCase("enum of 1000", {"enum": [f"item-{index}-{index * 7919 % 1009}" for index in range(1000)]}, ['"item-0-0"'], ['"item-1000-0"']),
    SchemaCase("const", _object(kind={"const": "dog"}), ['{"kind":"dog"}'], ['{"kind":"cat"}']),
    SchemaCase("anyOf", {"anyOf": [{"type": "integer"}, {"type": "string"}, _object(a={"type": "null"})]}, ["5", '"x"', '{"a":null}'], ["5.5", "[]"]),
    SchemaCase("oneOf by type", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["5", '"x"'], ["null"]),
    SchemaCase(
        "oneOf by tag", {"oneOf": [_object(k={"const": "a"}, x={"type": "integer"}), _object(k={"const": "b"})]}, ['{"k":"b"}'], ['{"k":"a"}']
    ),
    SchemaCase(
        "allOf",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        ['{"a":1,"b":"x"}'],
        ['{"a":1}'],
    ),
    SchemaCase("types", {"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    SchemaCase("pattern", {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, ['"ABC-1234"'], ['"abc-1234"', '"ABC-12345"']),
    SchemaCase("pattern without anchors", {"type": "string", "pattern": "[0-9]{2}"}, ['"a12b"', '"12"'], ['"a1b"']),
    SchemaCase("lengths", {"type": "string", "minLength": 2, "maxLength": 4}, ['"ab"', '"abcd"', '"日本語"'], ['"a"', '"abcde"']),
    SchemaCase("integer bounds", {"type": "integer", "minimum": -3, "maximum": 120}, ["-3", "0", "120"], ["-4", "121", "1.5"]),
    SchemaCase("exclusive bounds", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}, ["1", "9"], ["0", "10"]),
    SchemaCase("number bounds", {"type": "number", "minimum": 0.5, "maximum": 2.25}, ["0.5", "1", "2.25"], ["0.4", "2.26", "3"]),
    SchemaCase("multipleOf", {"type": "integer", "multipleOf": 5}, ["0", "15"], ["7"]),
    SchemaCase(
        "array counts", {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, ["[1,2]", "[1,2,3]"], ["[1]", "[1,2,3,4]"]
    ),
    SchemaCase(
        "tuple",
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
        ['["a",1]'],
        ['["a"]', '["a",1,2]'],
    ),
    SchemaCase("map", {"type": "object", "additionalProperties": {"type": "integer"}}, ['{"a":1,"b":2}'], ['{"a":"x"}']),
    SchemaCase(
        "open object", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, ['{"a":1}', '{"a":1,"z":"x"}'], ['{"z":1}']
    ),
    SchemaCase(
        "patternProperties",
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
        ['{"x-a":1}'],
        ['{"y":1}', '{"x-a":"s"}'],
    ),
    SchemaCase("minProperties", {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, ['{"a":1}'], ["{}"]),
    SchemaCase("date-time", {"type": "string", "format": "date-time"}, ['"2024-02-29T12:00:00Z"'], ['"yesterday"', '"2024-13-01T00:00:00Z"']),
    SchemaCase("date", {"type": "string", "format": "date"}, ['"2024-02-29"'], ['"29.02.2024"']),
    SchemaCase("email", {"type": "string", "format": "email"}, ['"a.b@example.org"'], ['"nobody"']),
    SchemaCase("uuid", {"type": "string", "format": "uuid"}, ['"3fa85f64-5717-4562-b3fc-2c963f66afa6"'], ['"3fa85f64"']),
    SchemaCase("ipv4", {"type": "string", "format": "ipv4"}, ['"10.0.0.255"'], ['"10.0.0.256"']),
    SchemaCase("uri", {"type": "string", "format": "uri"}, ['"https://example.org/a?b=c"'], ['"not a uri"']),
    SchemaCase("unicode", _object(名前={"type": "string", "enum": ["山田", "Zoë", "😀"]}), ['{"名前":"山田"}', '{"名前":"😀"}'], ['{"名前":"x"}']),
    SchemaCase("escapes", {"enum": ['say "hi"\n', "back\\slash"]}, ['"say \\"hi\\"\\n"', '"back\\\\slash"'], ['"say hi"']),
    SchemaCase("not", {"type": "string", "not": {"enum": ["no"]}}, ['"yes"'], ['"no"']),
    SchemaCase("uniqueItems", {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, ["[1,2]"], ["[1,1]"]),
    SchemaCase("if then", {"if": {"type": "integer"}, "then": {"minimum": 5}}, ["5", '"x"'], ["4"]),
    SchemaCase("contains", {"type": "array", "contains": {"const": 7}}, ["[1,7]"], ["[1]"]),
    SchemaCase(
        "dependentRequired", {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}, ['{"a":1,"b":1}'], ['{"a":1}']
    ),
    SchemaCase("propertyNames", {"type": "object", "propertyNames": {"maxLength": 2}}, ['{"ab":1}'], ['{"abc":1}']),
    SchemaCase(
        "300 properties",
        _object(**{f"field_{index}": {"type": "integer"} for index in range(300)}),
        ["{" + ",".join(f'"field_{index}":{index}' for index in range(300)) + "}"],
        ["{}"],
    ),
    SchemaCase(
        "200 optional properties",
        {"type": "object", "properties": {f"field_{index}": {"type": "integer"} for index in range(200)}, "additionalProperties": False},
        ['{"field_3":1,"field_199":2}'],
        ['{"other":1}'],
    ),
]

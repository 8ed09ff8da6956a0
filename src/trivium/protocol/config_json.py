"""Model configurations as JSON, the way Triton prints them.

protobuf's own JSON writes 64-bit integers as text and leaves defaults out; Triton writes plain numbers, and every field that can't be
absent: scalars, lists and maps always, messages and members of a oneof only where they are set. Enums are names, whole floats have no
point, fields keep their names and stand in the order of their declaration.
"""

from __future__ import annotations

import json
import struct
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from trivium.errors import InvalidRequest
from trivium.protocol.model_config import ModelConfig


def config_to_dict(message: Message) -> dict[str, Any]:
    """JSON values of a `ModelConfig` or of any message in it."""
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    return {field.name: _field(message, field) for field in fields if field.is_repeated or not field.has_presence or message.HasField(field.name)}


def config_to_json(config: ModelConfig) -> str:
    return json.dumps(config_to_dict(config), separators=(",", ":"), ensure_ascii=False)


def config_from_json(text: str) -> ModelConfig:
    """Raises `InvalidRequest` for text that isn't a JSON object, an unknown field, or a value of another type."""
    try:
        values: object = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it must be a JSON object")
        return json_format.ParseDict(cast("dict[str, Any]", values), ModelConfig())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the model configuration is not valid: {error}", param="config") from None


def _field(message: Message, field: Any) -> Any:
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        return {str(key): _value(value[key], item) for key in sorted(value)}
    if field.is_repeated:
        return [_value(element, field) for element in value]
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return config_to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == FieldDescriptor.TYPE_FLOAT:
        value = _shortest(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _shortest(value: float) -> float:
    """The shortest decimal that is the same 32-bit float: 0.1 and not 0.10000000149."""
    candidates = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next(short for short in candidates if struct.pack("f", short) == struct.pack("f", value))

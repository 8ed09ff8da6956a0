"""JSON Schema of a config file, for editors (`# yaml-language-server: $schema=…`)."""

from __future__ import annotations

from typing import Any, Final, cast, get_origin

from trivium.config_io.settings import Setting, settings_of

_SIZES: Final = r"^-?\d+(\.\d+)?([kmgt]|[KMGT](iB)?)?$"


def _type_schema(setting: Setting) -> list[dict[str, Any]]:
    if setting.choices:
        return [{"enum": list(setting.choices)}]
    kind = get_origin(setting.annotation) or setting.annotation
    return {
        bool: [{"type": "boolean"}],
        int: [{"type": "integer"}, {"type": "string", "pattern": _SIZES}],
        float: [{"type": "number"}],
        str: [{"type": "string"}],
        tuple: [{"type": "array", "items": {"type": "string"}}, {"type": "string"}],
        dict: [{"type": "object"}],
    }[kind]


def _property(setting: Setting) -> dict[str, Any]:
    kinds = _type_schema(setting) + ([{"type": "null"}] if setting.is_optional else [])
    kind = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    default: Any = list(cast("tuple[str, ...]", setting.default)) if isinstance(setting.default, tuple) else setting.default
    return {**kind, "description": setting.doc, "default": default}


def json_schema(root: type) -> dict[str, Any]:
    """The schema of a file that `read_file` accepts, keys written with underscores."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trivium configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _property(setting) for name, setting in settings_of(root).items()},
    }

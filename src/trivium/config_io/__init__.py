"""From flags, environment variables, YAML and keyword arguments to the frozen dataclasses of `config`, and out again as schema."""

from __future__ import annotations

from trivium.config_io.parse import check_value, parse_text
from trivium.config_io.resolve import Resolved, build, build_engine_config, read_file, resolve
from trivium.config_io.schema import json_schema
from trivium.config_io.settings import Setting, settings_of, suggest

__all__ = [
    "Resolved",
    "Setting",
    "build",
    "build_engine_config",
    "check_value",
    "json_schema",
    "parse_text",
    "read_file",
    "resolve",
    "settings_of",
    "suggest",
]

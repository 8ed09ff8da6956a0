"""Values of settings: from text (flags, environment) and from typed values (YAML, keyword arguments). Wrong ones raise `ConfigError`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, cast, get_origin

from trivium.config_io.settings import Setting
from trivium.errors import ConfigError

_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_IEC: Final = {f"{letter}iB": size for letter, size in _BINARY.items()}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)([kmgt]|[KMGT](?:iB)?)?", re.ASCII)
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


def parse_int(text: str) -> int:
    """A whole number, or one with a suffix as in vLLM: 32k is 32,000, 32K and 32KiB are 32,768.

    Decimals only before k, m, g, t and KiB to TiB. Raises `ValueError`.
    """
    match = _NUMBER.fullmatch(text.strip().replace("_", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a whole number (32768, 32k = 32000, 32K = 32768, 1M, 2GiB)")
    digits, suffix = match[1], match[2] or ""
    if "." not in digits:
        return int(digits) * (_DECIMAL | _BINARY | _IEC).get(suffix, 1)
    scales = _DECIMAL | _IEC
    value = float(digits) * scales.get(suffix, 0)
    if suffix not in scales or not value.is_integer():
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return word in _TRUE


def _parse_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")
    return cast(dict[str, Any], value)


def _choose(setting: Setting, word: object) -> str:
    if word not in setting.choices:
        raise ValueError(f"must be one of {', '.join(setting.choices)}, got {word!r}")
    return str(word)


def _parse(setting: Setting, text: str) -> Any:
    if setting.choices:
        return _choose(setting, text)
    kind = get_origin(setting.annotation) or setting.annotation
    if kind is tuple:
        words = [part.strip() for part in text.split(",")]
        if setting.is_secret and not all(words):
            # An unset shell variable must not open a server that was meant to be closed.
            raise ConfigError(f"{setting.name} must not be empty.", param=setting.name)
        return tuple(word for word in words if word)
    if kind is dict:
        return _parse_json(text)
    if kind is bool:
        return _parse_bool(text)
    if kind is int:
        return parse_int(text)
    if kind is float:
        return float(text)
    return text


def parse_text(setting: Setting, text: str) -> Any:
    """The value that `text` means. `none` is None where the setting allows it; lists are separated by commas."""
    if setting.is_optional and text.strip().lower() == "none":
        return None
    try:
        return _parse(setting, text)
    except ValueError as error:
        raise ConfigError(f"{setting.name}: {error}.", param=setting.name) from None


def check_value(setting: Setting, value: object) -> Any:
    """`value` as the setting's type: a list for a tuple, one word for a list of one, a whole number for a float, `32k` for an int."""
    if value is None and setting.is_optional:
        return None
    try:
        return _check(setting, value)
    except ValueError as error:
        raise ConfigError(f"{setting.name}: {error}.", param=setting.name) from None


def _check(setting: Setting, value: object) -> Any:
    kind = get_origin(setting.annotation) or setting.annotation
    if setting.choices:
        return _choose(setting, value)
    if kind is tuple:
        return _check_words(value)
    if kind is dict and isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    if kind is int and isinstance(value, str):
        return parse_int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"must be {_NAMES[kind]}, got {value!r}")
    return value


_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping", tuple: "a list"}


def _check_words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of words, got {value!r}")
    words = cast("list[object] | tuple[object, ...]", value)
    wrong = [word for word in words if not isinstance(word, str)]
    if wrong:
        raise ValueError(f"must be a list of words, but {wrong[0]!r} is none")
    return tuple(cast("list[str]", words))

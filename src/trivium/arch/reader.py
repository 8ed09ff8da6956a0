"""Typed access to a `config.json`: a wrong or missing value is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from trivium.errors import ModelLoadError

MAX_INTEGER: Final = 2**31 - 1
"""No size in a config is larger; what a loop or a tuple will have as many of has a lower bound of its own."""


class ConfigReader:
    """Reads keys of one JSON object. `null` counts as absent. Every error is a `ModelLoadError`."""

    def __init__(self, config: Mapping[str, Any], *, where: str = "config.json") -> None:
        self._config = config
        self.where = where

    def has(self, key: str) -> bool:
        return self._config.get(key) is not None

    def present_keys(self) -> list[str]:
        """Keys with a value other than null."""
        return [key for key, value in self._config.items() if value is not None]

    def values(self) -> Mapping[str, Any]:
        return self._config

    def integer(self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        """The first of `keys` that is present, else `default`; from `minimum` to `maximum`."""
        key, value = self._first(keys, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._error(key, value, "a whole number")
        if value < minimum:
            raise self._error(key, value, f"at least {minimum}")
        if value > maximum:
            raise self._error(key, value, f"at most {maximum}")
        return value

    def integer_or_none(self, key: str, *, minimum: int = 1) -> int | None:
        return self.integer(key, minimum=minimum) if self.has(key) else None

    def number(self, key: str, *, default: float | None = None) -> float:
        _, value = self._first((key,), default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(key, value, "a number")
        return float(value)

    def positive(self, key: str, *, default: float | None = None) -> float:
        value = self.number(key, default=default)
        if not 0.0 < value < float("inf"):
            raise self._error(key, value, "positive")
        return value

    def positive_or_none(self, key: str) -> float | None:
        return self.positive(key) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._first((key,), default)[1]
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._first((key,), default)[1]
        if not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(float(value) for value in self._list(key, (int, float), "a list of numbers"))

    def integers(self, key: str) -> tuple[int, ...]:
        return tuple(self._list(key, (int,), "a list of whole numbers"))

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._list(key, (str,), "a list of strings"))

    def section(self, key: str) -> ConfigReader:
        """The object at `key`; empty if absent."""
        value = self._config.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._error(key, value, "an object")
        return ConfigReader(cast(Mapping[str, Any], value), where=f"{self.where}: {key}")

    def refuse(self, key: str, *allowed: object) -> None:
        """Raise if `key` is present with a value other than those in `allowed`: a feature we don't have."""
        value = self._config.get(key)
        if value is not None and value not in allowed:
            raise ModelLoadError(f"{self.where}: {key} = {value!r} is not supported.")

    def error(self, key: str, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.where}: {key} = {self._config.get(key)!r}: {problem}")

    def _first(self, keys: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for key in keys:
            if self.has(key):
                return key, self._config[key]
        if default is None:
            raise ModelLoadError(f"{self.where}: {keys[0]} is missing.")
        return keys[0], default

    def _list(self, key: str, types: tuple[type, ...], expected: str) -> Sequence[Any]:
        value = self._first((key,), None)[1]
        items = cast(list[Any], value) if isinstance(value, list) else None
        if items is None or not all(isinstance(item, types) and not isinstance(item, bool) for item in items):
            raise self._error(key, cast(object, value), expected)
        return items

    def _error(self, key: str, value: object, expected: str) -> ModelLoadError:
        return ModelLoadError(f"{self.where}: {key} must be {expected}, got {value!r}.")

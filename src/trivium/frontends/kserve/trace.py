"""The trace extension's settings: what is traced, for all models and for single ones. `null` resets a setting to what it was at the start.

Traces go to the file given at the start (`trace_file`); without one, tracing can't be switched on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from trivium.errors import InvalidRequest, UnsupportedFeature

OFF: Final = "OFF"
LEVELS: Final = (OFF, "TIMESTAMPS")
"""Triton's TENSORS, which puts the data of requests into the file, is refused."""
_NUMBERS: Final = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}
"""Settings that are numbers, with the least they may be."""
_MAX: Final = 2**63 - 1


class TraceSettings:
    """Values are as clients see them: text, or a list of texts for the level."""

    def __init__(self, *, trace_file: str = "") -> None:
        self._initial: dict[str, Any] = {
            "trace_level": [OFF],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": trace_file,
            "trace_mode": "triton",
        }
        self._values = dict(self._initial)
        self._models: dict[str, dict[str, Any]] = {}

    @property
    def is_on(self) -> bool:
        """For all models or for any."""
        return self._values["trace_level"] != [OFF] or any(own.get("trace_level", [OFF]) != [OFF] for own in self._models.values())

    def values(self, model: str = "") -> dict[str, Any]:
        """For one model, or those of all models that have none of their own."""
        return {**self._values, **self._models.get(model, {})}

    def update(self, changes: Mapping[str, Any], model: str = "") -> None:
        """All or nothing. Raises `InvalidRequest` for an unknown setting or a value it can't have."""
        parsed = {name: None if value is None else self._parse(name, value) for name, value in changes.items()}
        for name, value in parsed.items():
            if model:
                own = self._models.setdefault(model, {})
                own.pop(name, None)
                if value is not None:
                    own[name] = value
            else:
                self._values[name] = self._initial[name] if value is None else value

    def _parse(self, name: str, value: Any) -> Any:
        if name == "trace_level":
            return self._parse_levels([value] if isinstance(value, str) else value)
        if name in _NUMBERS:
            return _parse_number(name, value)
        if name in ("trace_file", "trace_mode"):
            raise UnsupportedFeature(f"{name.replace('_', ' ')} can not be updated through network protocol")
        raise InvalidRequest(f"'{name[:64]}' is not a trace setting")

    def _parse_levels(self, value: Any) -> list[str]:
        if not isinstance(value, Sequence) or not value or not all(level in LEVELS for level in cast("Sequence[Any]", value)):
            raise InvalidRequest(f"trace_level must be a list of {', '.join(LEVELS)}")
        levels = list(dict.fromkeys(cast("Sequence[str]", value)))
        if levels == [OFF]:
            return levels
        if not self._initial["trace_file"]:
            raise UnsupportedFeature("This server has no trace file: start it with --trace-file to trace requests.")
        return [level for level in levels if level != OFF]


def _parse_number(name: str, value: Any) -> str:
    text = str(value).strip()
    if not text.removeprefix("-").isdecimal() or len(text) > 20 or not _NUMBERS[name] <= int(text) <= _MAX:
        raise InvalidRequest(f"{name} must be a number from {_NUMBERS[name]} on")
    return str(int(text))

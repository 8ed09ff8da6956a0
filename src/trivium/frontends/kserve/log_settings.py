"""The logging extension: which levels this process writes, changed while it runs.

Triton's keys. `log_file` can't be changed over the network, as in Triton: it would let clients write files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from trivium.errors import InvalidRequest, UnsupportedFeature

_FORMATS: Final = ("default", "ISO8601")
"""Times are written as ISO 8601 in either."""
_BOOLEANS: Final = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
_LOGGER: Final = "trivium"
MAX_VERBOSE_LEVEL: Final = 2**32 - 1


class _Levels(logging.Filter):
    """Passes records of the levels that are on; others' than ours are left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: set[int] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self.hidden or not record.name.startswith(_LOGGER)


class LogSettings:
    """Of this process."""

    def __init__(self) -> None:
        level = logging.getLogger(_LOGGER).getEffectiveLevel()
        self._values: dict[str, Any] = {
            "log_file": "",
            **{name: level <= number for name, number in _BOOLEANS.items()},
            "log_verbose_level": int(level <= logging.DEBUG),
            "log_format": "default",
        }
        self._levels = _Levels()

    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def update(self, changes: Mapping[str, Any]) -> None:
        """All or nothing. Raises `InvalidRequest` for an unknown key or a value of the wrong type."""
        for name, value in changes.items():
            _check(name, value)
        if not changes:
            return
        self._values |= changes
        self._apply()

    def _apply(self) -> None:
        is_verbose = self._values["log_verbose_level"] > 0
        self._levels.hidden = {number for name, number in _BOOLEANS.items() if not self._values[name]}
        shown = [number for name, number in _BOOLEANS.items() if self._values[name]]
        logging.getLogger(_LOGGER).setLevel(logging.DEBUG if is_verbose else min(shown, default=logging.CRITICAL))
        for handler in logging.getLogger().handlers:
            if is_verbose:
                handler.setLevel(min(handler.level, logging.DEBUG))
            elif shown:
                handler.setLevel(min(handler.level, *shown))
            handler.addFilter(self._levels)


def _check(name: str, value: Any) -> None:
    if name == "log_file":
        raise UnsupportedFeature("log file location can not be updated through network protocol")
    if name in _BOOLEANS:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false")
    elif name == "log_verbose_level":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_VERBOSE_LEVEL:
            raise InvalidRequest("log_verbose_level must be a number from 0 on")
    elif name == "log_format":
        if value not in _FORMATS:
            raise InvalidRequest(f"Unknown log_format; it must be one of {', '.join(_FORMATS)}")
    else:
        raise InvalidRequest(f"'{name[:64]}' is not a log setting")

"""Logging: for people on a terminal, one JSON object a line elsewhere, always to standard error.

Modules use `logging.getLogger(__name__)` as usual; only a process's entry point calls `setup`. Extra fields go in `extra={"request_id": …}`.
Control characters are escaped, so that a request can't forge a line or move the cursor; registered secrets are replaced by `***`. A full disk
or a closed pipe drops lines (`dropped_lines` counts them) and never raises into the caller.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from trivium import env
from trivium.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("auto", "human", "json")
Format = Literal["human", "json"]

FIELDS: Final = ("request_id", "trace_id", "model", "version", "tenant", "status", "method", "path", "duration_s", "port", "pid")
"""Extra fields that are logged when a record has them; anything else in `extra` is ignored."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BEARER = re.compile(r"""\b((?i:bearer)\s+|(?i:api[-_]?key)[=:]\s*)(?!(?:YOUR_)?KEY['").,]*(?:\s|$))\S+""")
"""Whatever follows, but for the placeholder of help texts."""
_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31;1", "DEBUG": "2"}
_MIN_SECRET_LEN = 4

_secrets: list[str] = []


def register_secrets(values: Iterable[str]) -> None:
    """From now on these values are shown as `***`. Values under four characters are left alone: they would garble ordinary words."""
    known = {*_secrets, *(value for value in values if len(value) >= _MIN_SECRET_LEN)}
    _secrets[:] = sorted(known, key=lambda value: (-len(value), value))


def redact(text: str) -> str:
    for secret in _secrets:
        text = text.replace(secret, "***")
    return _BEARER.sub(r"\1***", text)


def escape(text: str, *, keep_newlines: bool = False) -> str:
    """Control and direction-changing characters as backslash escapes; tabs stay, newlines where asked."""

    def replace(match: re.Match[str]) -> str:
        char = match.group()
        return char if char == "\n" and keep_newlines else char.encode("unicode_escape").decode("ascii")

    return _CONTROL.sub(replace, text)


def one_line(text: str) -> str:
    """Line ends become spaces; the places of a Python error in Triton's form (`\\n\\nAt:\\n  file(3): name`) follow it; the `;` after the last of
    several reasons goes."""
    lines = [line.strip() for line in text.splitlines()]
    return " ".join("at" if line == "At:" else line for line in lines if line).removesuffix(";").rstrip()


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


class JsonFormatter(logging.Formatter):
    """`{"ts": …, "level": …, "logger": …, "msg": …}` and the fields of `FIELDS`; a traceback goes under `exc`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": escape(redact(record.getMessage()), keep_newlines=True),
        }
        for name, value in _extras(record).items():
            entry[name] = value if isinstance(value, int | float | None) else escape(redact(str(value)))
        if record.exc_info:
            entry["exc"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """`12:00:00 WARNING engine: text (request_id=…)`, coloured on request."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname} " if record.levelno != logging.INFO else ""
        if self.colour and record.levelname in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelname]}m{level}\x1b[0m"
        extras = " ".join(f"{name}={escape(redact(str(value)))}" for name, value in _extras(record).items())
        line = f"{clock} {level}{record.name.removeprefix('trivium.')}: {escape(redact(record.getMessage()))}"
        if extras:
            line += f" ({extras})"
        if record.exc_info:
            line += "\n" + escape(redact(self.formatException(record.exc_info)), keep_newlines=True)
        return line


class SafeHandler(logging.Handler):
    """Writes to a stream, or to whatever `sys.stderr` is at the time, so that progress bars can take lines in.

    Lines that can't be written are counted, not raised.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self.dropped_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = self._stream or sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.dropped_lines += 1


def dropped_lines() -> int:
    """Lines of this process that could not be written so far, since logging was set up."""
    return sum(handler.dropped_lines for handler in logging.getLogger().handlers if isinstance(handler, SafeHandler))


def is_json() -> bool:
    """Whether this process writes JSON: then nobody watches, and what is meant for eyes alone is better left out."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers if isinstance(handler, SafeHandler))


def setup(*, level: str | None = None, style: str | None = None, stream: TextIO | None = None) -> None:
    """Configure logging of this process; calling it again replaces what was set.

    `level` is one of `LEVELS` (default: TRIVIUM_LOG_LEVEL, then info) and `style` one of `FORMATS` (default: TRIVIUM_LOG_FORMAT, then auto).
    Raises `ConfigError` for anything else.
    """
    level = _level(level)
    handler = SafeHandler(stream)
    handler.setFormatter(_formatter(_style(style), stream or sys.stderr))
    # For the loggers of libraries that have levels of their own (uvicorn's).
    handler.setLevel(level.upper())
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, SafeHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    # Libraries' warnings would be lines in a form of their own.
    logging.captureWarnings(True)
    root.setLevel(logging.WARNING)
    logging.getLogger("trivium").setLevel(level.upper())


def check_environment() -> None:
    """Raises `ConfigError` for a TRIVIUM_LOG_LEVEL or TRIVIUM_LOG_FORMAT that `setup` would refuse."""
    _level(None)
    _style(None)


def _level(given: str | None) -> str:
    level = (given or env.get("TRIVIUM_LOG_LEVEL") or "info").lower()
    if level not in LEVELS:
        raise ConfigError(f"The log level must be one of {', '.join(LEVELS)}, got {level!r}.", param="log_level")
    return level


def _style(given: str | None) -> str:
    style = given or env.get("TRIVIUM_LOG_FORMAT") or "auto"
    if style not in FORMATS:
        raise ConfigError(f"The log format must be one of {', '.join(FORMATS)}, got {style!r}.", param="log_format")
    return style


def _formatter(style: str, stream: TextIO) -> logging.Formatter:
    is_terminal = stream.isatty()
    if style == "json" or (style == "auto" and not is_terminal):
        return JsonFormatter()
    return HumanFormatter(colour=is_terminal and env.get("NO_COLOR") is None)

"""`config.pbtxt`: protobuf's text format, with the line of everything in it.

protobuf parses; it names the place of a syntax error and of an unknown field, but keeps no places of what it accepted. For errors that
only show later (a dimension of 0, a preferred batch size that is too large) a second, forgiving walk over the tokens notes the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelConfig

MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024

Field = tuple[str | int, ...]
"""Way to a field: names, and the index after the name of a repeated message, as in `("input", 1, "dims")`."""

_TOKEN: Final = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{}\[\]<>:;,]|[^\s{}\[\]<>:;,#\"']+")
_CLOSING: Final = {"{": "}", "<": ">"}


class BadModelConfig(ModelLoadError):
    """A model's configuration can't be served; the message says where it is wrong."""


@dataclass(frozen=True)
class ConfigText:
    """A parsed configuration and where it came from. `source` is shown in errors; it has no lines where it isn't a text file."""

    config: ModelConfig
    source: str
    lines: Mapping[Field, int]

    def where(self, field: Field) -> str:
        """`path:line` of a field, or of the nearest message around it that the text has."""
        for length in range(len(field), 0, -1):
            line = self.lines.get(_normal(field[:length]))
            if line is not None:
                return f"{self.source}:{line}"
        return self.source


def parse_config(text: str, source: str) -> ConfigText:
    """Raises `BadModelConfig` with file, line and column."""
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        where = source if line is None else f"{source}:{line}:{column}"
        message = str(error).removeprefix(f"{line}:{column} : ").replace('Message type "inference.', 'message type "')
        raise BadModelConfig(f"{where}: {message}") from None
    except (RecursionError, ValueError) as error:
        raise BadModelConfig(f"{source}: {error}") from None
    return ConfigText(config, source, _Locator(text).lines)


def read_config(path: Path, source: str) -> ConfigText:
    """`source`: what errors call the file. Raises `BadModelConfig` for one that can't be read or parsed."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise BadModelConfig(f"{source}: a model configuration has at most {MAX_CONFIG_BYTES:,} bytes, this file has {size:,}")
        return parse_config(path.read_bytes().decode("utf-8"), source)
    except OSError as error:
        raise BadModelConfig(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadModelConfig(f"{source}: not UTF-8 at byte {error.start}") from None


def _normal(field: Field) -> Field:
    """With an index behind the name of every message on the way: a message that isn't repeated is its own first one."""
    found: list[str | int] = []
    for position, part in enumerate(field):
        found.append(part)
        if isinstance(part, str) and position + 1 < len(field) and isinstance(field[position + 1], str):
            found.append(0)
    return tuple(found)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Every token but comments, and the line it begins in."""
    line, counted = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        if match.group()[0] != "#":
            yield match.group(), line


class _Locator:
    """Lines of all fields of a text that protobuf accepts."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Field, int] = {}
        self._tokens = list(_tokens(text))
        self._position = 0
        self._read_fields((), end="")

    def _peek(self) -> str:
        return self._tokens[self._position][0] if self._position < len(self._tokens) else ""

    def _take(self) -> tuple[str, int]:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _read_fields(self, inside: Field, *, end: str) -> None:
        counts: dict[str, int] = {}
        while (token := self._peek()) and token != end:
            name, line = self._take()
            if name in (";", ","):
                continue
            if self._peek() == ":":
                self._take()
            self.lines.setdefault((*inside, name), line)
            self._read_value((*inside, name), line, counts)
        if self._peek():
            self._take()

    def _read_value(self, field: Field, line: int, counts: dict[str, int]) -> None:
        token = self._peek()
        if token in _CLOSING:
            self._read_message(field, line, counts)
        elif token == "[":
            self._take()
            while (token := self._peek()) and token != "]":
                if token in _CLOSING:
                    self._read_message(field, self._tokens[self._position][1], counts)
                else:
                    self._take()
            if token:
                self._take()
        elif token:
            first, _ = self._take()
            while first[0] in "\"'" and self._peek()[:1] in ('"', "'"):
                self._take()

    def _read_message(self, field: Field, line: int, counts: dict[str, int]) -> None:
        opening, _ = self._take()
        name = str(field[-1])
        index = counts.get(name, 0)
        counts[name] = index + 1
        self.lines[*field, index] = line
        self._read_fields((*field, index), end=_CLOSING[opening])

"""The process chat templates run in: reads one JSON request a line from stdin, answers with one JSON line on stdout.

A template is a program that came with a model. Here it has no names but those listed, a bounded output, a bounded memory, and when it
uses up its processor time the kernel ends the process, whatever it is doing. Run as a file, so that it starts without the rest of the
package; it must not import any of it.

Request: {"source": …, "variables": {…} or null to check the syntax only}. Answer: {"text": …} or {"error": kind, "message": …}, kind being
`syntax`, `raised` (by the template's raise_exception), `render` or `limit`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, NoReturn, cast

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class RaisedByTemplate(Exception):
    """What `raise_exception` in a template becomes."""


class GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment() -> Environment:
    """What transformers gives chat templates, so that models' templates work as they do there."""
    extensions = [GenerationTag, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    cast("dict[str, Any]", environment.filters)["tojson"] = _to_json
    cast("dict[str, Any]", environment.globals).update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """Unlike jinja2's own, it escapes nothing for HTML and leaves other scripts as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplate(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class Renderer:
    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        environment = make_environment()
        self._compile = lru_cache(maxsize=4)(environment.from_string)

    def answer(self, line: bytes) -> dict[str, str]:
        request = json.loads(line)
        try:
            template = self._compile(request["source"])
            return {"text": "" if request["variables"] is None else self._render(template, request["variables"])}
        except TemplateSyntaxError as error:
            return {"error": "syntax", "message": f"line {error.lineno}: {error.message}"}
        except RaisedByTemplate as error:
            return {"error": "raised", "message": str(error)}
        except (MemoryError, OverflowError, RecursionError) as error:
            return {"error": "limit", "message": type(error).__name__}
        except TemplateError as error:
            return {"error": "render", "message": str(error)}
        except Exception as error:  # a template can raise anything
            return {"error": "render", "message": f"{type(error).__name__}: {error}"}

    def _render(self, template: Template, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        room = self._max_chars
        for piece in template.generate(variables):
            room -= len(piece)
            if room < 0:
                raise OverflowError
            pieces.append(piece)
        return "".join(pieces)


def serve(requests: BinaryIO, answers: BinaryIO, *, max_chars: int, cpu_seconds: float) -> None:
    """Until `requests` ends. Each request may take `cpu_seconds` of processor time; then SIGPROF, left at its default, ends the process."""
    renderer = Renderer(max_chars)
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        answer = renderer.answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main(arguments: list[str]) -> None:
    """Arguments: most characters of an output, seconds of processor time, bytes of address space."""
    max_chars, cpu_seconds, max_bytes = int(arguments[0]), float(arguments[1]), int(arguments[2])
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    serve(sys.stdin.buffer, sys.stdout.buffer, max_chars=max_chars, cpu_seconds=cpu_seconds)


if __name__ == "__main__":
    main(sys.argv[1:])

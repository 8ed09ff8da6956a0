"""Grammars: into llguidance's form, and tried in a process that can be lost."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path
from typing import Any

import llguidance
import pytest

from trivium.config import HttpConfig, TgiConfig
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.openai.schema import ChatBody
from trivium.frontends.openai.structured import structured_outputs_of
from trivium.text import grammar, grammar_worker
from trivium.text.grammar import GrammarChecker, to_llguidance
from trivium.types import StructuredOutputsParams

guidance: Any = llguidance
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def accepts(wanted: StructuredOutputsParams, text: str) -> bool:
    matcher = guidance.LLMatcher(guidance.LLTokenizer("byte"), to_llguidance(wanted), log_level=0)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"regex": r"\d{2}-[a-c]+"}, "12-ab", "1-a"),
        ({"regex": "^abc$"}, "abc", "^abc"),
        ({"regex": "a/b"}, "a/b", "ab"),
        ({"regex": r"a\/b"}, "a/b", "ab"),
        ({"regex": "a\nb\\\\/"}, "a\nb\\/", "ab"),
        ({"choice": ["yes", 'a"b\\', "你\n"]}, 'a"b\\', "no"),
        ({"choice": ["你\n"]}, "你\n", "你"),
        ({"json": SCHEMA}, '{"a": 1}', '{"a": "1"}'),
        ({"json": json.dumps(SCHEMA)}, '{\n  "a": 1\n}', '{"b": 1}'),
        ({"json": True}, '[1, {"x": null}]', "[1"),
        ({"json_object": True}, '{"x": [1]}', "[1]"),
        ({"json": {"anyOf": [{"const": "x"}, {"type": "number"}]}}, "1.5", '"y"'),
    ],
)
def test_forms(wanted: dict[str, Any], good: str, bad: str) -> None:
    params = StructuredOutputsParams(**wanted)
    assert accepts(params, good)
    assert not accepts(params, bad)


def test_blanks_between_json_tokens_are_bounded() -> None:
    assert accepts(StructuredOutputsParams(json=SCHEMA), "{" + " " * 32 + '"a":1}')
    assert not accepts(StructuredOutputsParams(json=SCHEMA), "{" + " " * 33 + '"a":1}')


@pytest.mark.parametrize(
    "wanted",
    [
        {"regex": "a" * (grammar.MAX_CHARS + 1)},
        {"json": {"x": "a" * (grammar.MAX_CHARS + 1)}},
        {"json": "[1"},
        {"json": "[1]"},
        {"json": "[" * 100000},
        {"json": False},
        {"choice": []},
        {"choice": [""]},
        {"choice": ["a"] * (grammar.MAX_CHOICES + 1)},
    ],
)
def test_what_is_refused_before_it_is_tried(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_llguidance(StructuredOutputsParams(**wanted))
    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize("wanted", [{}, {"regex": "a", "json_object": True}, {"json_object": False}])
def test_exactly_one_form(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Exactly one"):
        StructuredOutputsParams(**wanted)


def test_each_grammar_is_tried_once_and_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    try:
        checker.check(StructuredOutputsParams(json=SCHEMA))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="grammar is not valid: Invalid type: bogus"):
                checker.check(StructuredOutputsParams(json={"type": "bogus"}))
        monkeypatch.setattr(checker, "_try", lambda text: "tried again")
        checker.check(StructuredOutputsParams(json=SCHEMA))
        monkeypatch.setattr(grammar, "MAX_REMEMBERED", 1)
        with pytest.raises(InvalidRequest, match="tried again"):
            checker.check(StructuredOutputsParams(regex="b"))
        with pytest.raises(InvalidRequest, match="tried again"):
            checker.check(StructuredOutputsParams(json=SCHEMA))
    finally:
        checker.close()


def test_a_process_that_is_lost_is_a_grammar_that_takes_too_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.stdin.readline(); sys.exit(3)")
    monkeypatch.setattr(grammar, "_WORKER_FILE", script)
    checker = GrammarChecker()
    for text in "ab":
        with pytest.raises(InvalidRequest, match=r"too much time or memory \(its process ended with 3\)"):
            checker.check(StructuredOutputsParams(regex=text))
    checker.close()


def test_the_worker() -> None:
    asked = [{"grammar": to_llguidance(StructuredOutputsParams(regex=text))} for text in ("a", "(")]
    answers = io.BytesIO()
    grammar_worker.serve(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in asked)), answers, cpu_seconds=60)
    good, bad = map(json.loads, answers.getvalue().splitlines())
    assert good == {"ok": ""}
    assert bad["error"] == "invalid"
    assert "regex" in bad["message"]


def test_the_workers_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(grammar_worker.resource, "setrlimit", lambda *args: calls.append(args[1]))
    monkeypatch.setattr(grammar_worker, "serve", lambda *args, **kwargs: calls.append(kwargs))
    monkeypatch.setattr(grammar_worker.sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(grammar_worker.sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    grammar_worker.main(["2.5", "1000"])
    assert calls == [(1000, 1000), {"cpu_seconds": 2.5}]
    monkeypatch.setattr(grammar_worker.sys, "argv", ["worker", "5", "1000"])
    runpy.run_path(grammar_worker.__file__, run_name="__main__")
    assert calls[-1] == (1000, 1000)


# -- the forms of the APIs ----------------------------------------------------------------------------------------------------------


def asked(**fields: Any) -> StructuredOutputsParams | None:
    return structured_outputs_of(ChatBody(**fields), HttpConfig())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, {"json": {"type": "object"}}),
        ({"response_format": {"type": "json", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}}, {"json": SCHEMA}),
        ({"response_format": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a"], "json": None, "disable_any_whitespace": False}}, {"choice": ["a"]}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"guided_json": "{}"}, {"json": "{}"}),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_choice": ["a"], "response_format": {"type": "text"}}, {"choice": ["a"]}),
    ],
)
def test_forms_of_requests(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert asked(**fields) == (None if expected is None else StructuredOutputsParams(**expected))


def test_a_server_without_grammars_refuses_them_by_name() -> None:
    config = HttpConfig(tgi=TgiConfig(disable_grammar_support=True))
    with pytest.raises(UnsupportedFeature, match="guided_regex"):
        structured_outputs_of(ChatBody(guided_regex="a"), config)
    assert structured_outputs_of(ChatBody(response_format={"type": "text"}), config) is None

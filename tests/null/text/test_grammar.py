"""Grammars: into llguidance's form, and tried in a process that can be lost."""

from __future__ import annotations

import asyncio
import io
import json
import runpy
import threading
from pathlib import Path
from typing import Any

import llguidance
import pytest
import tokenizers
from helpers_scripted_engine import byte_tokenizer

from trivium.config import HttpConfig, TgiConfig
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.openai.schema import ChatBody
from trivium.frontends.openai.structured import structured_outputs_of
from trivium.text import Tokenizer, grammar, grammar_worker
from trivium.text.grammar import GrammarChecker, to_llguidance
from trivium.types import StructuredOutputsParams

guidance: Any = llguidance
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def deep_schema() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"items": schema}
    return schema


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
        ({"json": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}, '{"a": 1}', '"text"'),
        ({"json": SCHEMA, "disable_any_whitespace": True}, '{"a":1}', '{"a": 1}'),
        ({"json": SCHEMA, "whitespace_pattern": "_?"}, '{"a":_1}', '{"a": 1}'),
        ({"grammar": 'start: "a" tail\ntail: "b"+ | "(" tail ")"'}, "a((bb))", "a((b)"),
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
        {"json": {"title": "a" * (grammar.MAX_CHARS + 1)}},
        {"json": "[1"},
        {"json": "[1]"},
        {"json": "[" * 100000},
        {"json": False},
        {"choice": []},
        {"choice": [""]},
        {"choice": ["a"] * (grammar.MAX_CHOICES + 1)},
        {"json": deep_schema()},
        {"json": SCHEMA, "whitespace_pattern": "a" * (grammar.MAX_CHARS + 1)},
        {"grammar": "a" * (grammar.MAX_CHARS + 1)},
    ],
)
def test_what_is_refused_before_it_is_tried(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        to_llguidance(StructuredOutputsParams(**wanted, origin="guided_json"))
    assert refused.value.param == "guided_json"


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"regex": "a", "json_object": True},
        {"json_object": False},
        {"grammar": "a", "choice": ["a"]},
        {"json": SCHEMA, "disable_any_whitespace": True, "whitespace_pattern": " "},
    ],
)
def test_exactly_one_form(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Exactly one|exclude"):
        StructuredOutputsParams(**wanted)


def test_each_grammar_is_tried_once_and_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    try:
        good = StructuredOutputsParams(json=SCHEMA)
        assert checker.check_blocking(good) == to_llguidance(good)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="grammar is not valid: Invalid type: bogus") as refused:
                checker.check_blocking(StructuredOutputsParams(json={"type": "bogus"}, origin="response_format"))
            assert refused.value.param == "response_format"
        monkeypatch.setattr(checker, "_ask", lambda place, text: {"error": "invalid", "message": "tried again"})
        assert asyncio.run(checker.check(good)) == to_llguidance(good)
        with pytest.raises(InvalidRequest, match="bogus"):
            asyncio.run(checker.check(StructuredOutputsParams(json={"type": "bogus"})))
        with pytest.raises(InvalidRequest, match="tried again"):
            asyncio.run(checker.check(StructuredOutputsParams(regex="b")))
    finally:
        checker.close()


def test_gbnf_becomes_what_the_engine_takes() -> None:
    checker = GrammarChecker()
    try:
        wanted = StructuredOutputsParams(grammar='root ::= "yes" | "no" digit\ndigit ::= [0-9]')
        for _ in range(2):
            text = checker.check_blocking(wanted)
            matcher = guidance.LLMatcher(guidance.LLTokenizer("byte"), text, log_level=0)
            assert matcher.try_consume_tokens(list(b"no7")) == 3
            assert matcher.is_accepting()
        for broken in ('root ::= "yes', "root ::= " + "(" * 5000, "root ::= unknown"):
            with pytest.raises(InvalidRequest, match="grammar is not valid"):
                checker.check_blocking(StructuredOutputsParams(grammar=broken))
    finally:
        checker.close()


def scripted(monkeypatch: pytest.MonkeyPatch, checker: GrammarChecker, *limits: bool) -> list[int]:
    """Each lane answers that it is too much (True) or fine. Returns the lanes that were asked."""
    asked: list[int] = []

    def make(place: int, *, is_limit: bool) -> Any:
        def ask(request: dict[str, Any]) -> dict[str, str]:
            asked.append(place)
            return {"error": "limit", "message": "out of time"} if is_limit else {"grammar": ""}

        return ask

    for place, (lane, is_limit) in enumerate(zip(checker._lanes, limits, strict=True)):
        monkeypatch.setattr(lane.process, "ask", make(place, is_limit=is_limit))
        monkeypatch.setattr(lane.process, "start", lambda: None)
    return asked


def test_what_is_too_much_for_the_quick_lane_is_tried_in_the_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    asked = scripted(monkeypatch, checker, True, False)
    slow = StructuredOutputsParams(regex="slow")
    for _ in range(3):
        assert checker.check_blocking(slow) == to_llguidance(slow)
        assert asyncio.run(checker.check(slow)) == to_llguidance(slow)
    assert asked == [0, 1]
    asked = scripted(monkeypatch, checker, True, True)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match=r"too much time or memory \(out of time\)"):
            checker.check_blocking(StructuredOutputsParams(regex="bomb"))
    assert asked == [0, 1]
    # Those who waited for the quick lane while another learnt the answer.
    assert checker._ask(0, to_llguidance(slow)) == {"grammar": ""}
    assert checker._ask(0, to_llguidance(StructuredOutputsParams(regex="bomb"))) is None
    assert asked == [0, 1]
    checker.close()


@pytest.mark.parametrize("name", ["MAX_REMEMBERED", "MAX_REMEMBERED_CHARS"])
def test_answers_are_not_remembered_for_ever(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = GrammarChecker()
    asked = scripted(monkeypatch, checker, True, True)
    monkeypatch.setattr(grammar, name, 1)
    for text in ("a", "b", "a"):
        with pytest.raises(InvalidRequest):
            checker.check_blocking(StructuredOutputsParams(regex=text))
    assert asked == [0, 1] * 3
    assert len(checker._known) <= 1
    checker.close()


def test_a_process_that_is_lost_is_a_grammar_that_takes_too_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.stdin.readline(); sys.exit(3)")
    monkeypatch.setattr(grammar, "_WORKER_FILE", script)
    checker = GrammarChecker()
    for text in "ab":
        with pytest.raises(InvalidRequest, match=r"too much time or memory \(its process ended with 3\)"):
            checker.check_blocking(StructuredOutputsParams(regex=text))
    checker.close()


def test_a_bomb_is_stopped_and_the_next_grammar_is_tried() -> None:
    """Factors of a large prime: an automaton of a million states."""
    checker = GrammarChecker((0.05, 0.2))
    with pytest.raises(InvalidRequest, match="out of time"):
        checker.check_blocking(StructuredOutputsParams(json={"type": "integer", "multipleOf": 999983}))
    with pytest.raises(InvalidRequest, match="first token"):
        checker.check_blocking(StructuredOutputsParams(json={"const": "z" * 60_000}))
    assert checker.check_blocking(StructuredOutputsParams(regex="a"))
    checker.close()


def test_closing_does_not_wait_for_a_bomb() -> None:
    checker = GrammarChecker((60.0, 60.0))
    refused: list[str] = []

    def bomb() -> None:
        with pytest.raises(InvalidRequest) as error:
            checker.check_blocking(StructuredOutputsParams(json={"type": "integer", "multipleOf": 999983}))
        refused.append(error.value.message)

    thread = threading.Thread(target=bomb)
    thread.start()
    lane = checker._lanes[0]
    while lane.process._process is None:
        thread.join(0.01)
    checker.close()
    thread.join(20)
    assert len(refused) == 1
    assert all(lane.process._process is None for lane in checker._lanes)


def test_tokens_must_stand_for_bytes() -> None:
    wordpiece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0, "##b": 1}, unk_token="a"))
    wordpiece.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(UnsupportedFeature) as refused:
        grammar.check_tokenizer(Tokenizer(wordpiece), StructuredOutputsParams(regex="a", origin="guided_regex"))
    assert refused.value.param == "guided_regex"
    grammar.check_tokenizer(byte_tokenizer(), StructuredOutputsParams(regex="a"))


def test_the_worker() -> None:
    asked = [
        {"grammar": to_llguidance(StructuredOutputsParams(**wanted))} for wanted in ({"regex": "a"}, {"regex": "("}, {"grammar": 'root ::= "x"'})
    ]
    asked.append({"grammar": to_llguidance(StructuredOutputsParams(grammar="root ::= ("))})
    answers = io.BytesIO()
    grammar_worker.serve(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in asked)), answers, cpu_seconds=60)
    good, bad, gbnf, bad_gbnf = map(json.loads, answers.getvalue().splitlines())
    assert good == {"grammar": ""}
    assert bad["error"] == bad_gbnf["error"] == "invalid"
    assert "regex" in bad["message"]
    assert "start:" in gbnf["grammar"]


def test_a_first_token_that_takes_too_long_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_worker, "MAX_MASK_S", -1.0)
    answer = grammar_worker.check(guidance.LLTokenizer("byte"), to_llguidance(StructuredOutputsParams(regex="a")))
    assert answer["error"] == "limit"


def test_the_workers_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(grammar_worker.resource, "setrlimit", lambda *args: calls.append(args[1]))
    monkeypatch.setattr(grammar_worker.os, "nice", lambda by: calls.append(by))
    monkeypatch.setattr(grammar_worker, "serve", lambda *args, **kwargs: calls.append(kwargs))
    monkeypatch.setattr(grammar_worker.sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(grammar_worker.sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    stack = threading.stack_size()
    try:
        grammar_worker.main(["2.5", "1000"])
        assert calls == [(1000, 1000), grammar_worker.NICENESS, {"cpu_seconds": 2.5}]
        monkeypatch.setattr(grammar_worker.sys, "argv", ["worker", "5", "1000"])
        runpy.run_path(grammar_worker.__file__, run_name="__main__")
        assert calls[-2:] == [(1000, 1000), grammar_worker.NICENESS]
    finally:
        threading.stack_size(stack)


# -- the forms of the APIs ----------------------------------------------------------------------------------------------------------


def asked(**fields: Any) -> StructuredOutputsParams | None:
    found = structured_outputs_of(ChatBody(**fields), HttpConfig())
    if found is not None:
        assert found.origin.split(".")[0] in fields
        found.origin = "structured_outputs"
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}}, {"json": SCHEMA}),
        ({"response_format": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a"], "json": None, "disable_any_whitespace": False}}, {"choice": ["a"]}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"guided_json": "{}"}, {"json": "{}"}),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_grammar": "root ::= [a]"}, {"grammar": "root ::= [a]"}),
        ({"guided_json": {}, "guided_whitespace_pattern": " ?"}, {"json": {}, "whitespace_pattern": " ?"}),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, {"json": {}, "disable_any_whitespace": True}),
        ({"structured_outputs": {"grammar": "start: /a/"}}, {"grammar": "start: /a/"}),
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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, "structured_outputs.disable_additional_properties"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": 1}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}}, "response_format.json_schema.strict"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "schemas": 1}}}, "response_format.json_schema.schemas"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, "response_format.json_schema"),
        ({"guided_grammar": 5}, "guided_grammar"),
    ],
)
def test_what_can_not_be_honoured_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        structured_outputs_of(ChatBody(**fields), HttpConfig())
    assert refused.value.param == param

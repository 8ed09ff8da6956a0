"""The terminal conversation with a scripted model."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from trivium.cli.conversation import Conversation, parse_sampling, talk
from trivium.cli.remote import Message
from trivium.errors import ConfigError, GenerationFailed


class Scripted:
    """Answers with the next script; a script that holds an exception raises it there."""

    model = "scripted"

    def __init__(self, *scripts: list[str | BaseException]) -> None:
        self.scripts = list(scripts)
        self.asked: list[list[Message]] = []
        self.sampling: list[dict[str, Any]] = []
        self.is_stopped = False

    def reply(self, messages: list[Message], sampling: Mapping[str, Any]) -> Iterator[str]:
        self.asked.append(list(messages))
        self.sampling.append(dict(sampling))
        try:
            for piece in self.scripts.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.is_stopped = True

    def close(self) -> None:
        pass


def _conversation(talker: Scripted, **options: Any) -> tuple[Conversation, io.StringIO]:
    out = io.StringIO()
    return Conversation(talker, system=options.get("system"), sampling=options.get("sampling", {}), out=out), out


def _talk(conversation: Conversation, *lines: str | type[BaseException]) -> list[str]:
    waiting = list(lines)
    warnings: list[str] = []

    def read(prompt: str) -> str:
        line = waiting.pop(0) if waiting else EOFError
        if isinstance(line, str):
            return line
        raise line

    talk(conversation, read=read, warn=warnings.append)
    return warnings


def test_each_turn_carries_the_ones_before_it() -> None:
    talker = Scripted(["Hel", "lo"], ["Fine"])
    conversation, out = _conversation(talker, system="Be brief.", sampling={"temperature": 0.0})
    _talk(conversation, "Hi", "", "How are you?")
    assert out.getvalue() == "Hello\nFine\n"
    assert talker.asked[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How are you?"},
    ]
    assert talker.sampling[1] == {"temperature": 0.0}


def test_a_backslash_continues_a_line() -> None:
    talker = Scripted(["ok"])
    conversation, _ = _conversation(talker)
    _talk(conversation, "one\\", "two")
    assert talker.asked[0][-1]["content"] == "one\ntwo"


def test_a_failed_turn_is_told_and_forgotten() -> None:
    talker = Scripted(["par", GenerationFailed("it broke")], ["ok"])
    conversation, _ = _conversation(talker)
    assert _talk(conversation, "a", "b") == ["error: it broke"]
    assert [turn["content"] for turn in conversation.turns] == ["b", "ok"]


def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    talker = Scripted(["par", KeyboardInterrupt()])
    conversation, out = _conversation(talker)
    _talk(conversation, "a")
    assert out.getvalue() == "par …\n"
    assert conversation.turns[-1] == {"role": "assistant", "content": "par"}
    assert talker.is_stopped


def test_ctrl_c_at_the_prompt_drops_the_line() -> None:
    talker = Scripted(["ok"])
    conversation, _ = _conversation(talker)
    warnings = _talk(conversation, "half\\", KeyboardInterrupt, "whole")
    assert talker.asked[0][-1]["content"] == "whole"
    assert warnings == ["(/exit or Ctrl-D leaves)"]


def test_text_of_the_model_cannot_drive_the_terminal() -> None:
    conversation, out = _conversation(Scripted(["a\x1b[2J\nb\tc"]))
    _talk(conversation, "x")
    assert out.getvalue() == "a\\x1b[2J\nb\tc\n"


def test_commands() -> None:
    talker = Scripted(["one"], ["two"], ["three"])
    conversation, out = _conversation(talker)
    _talk(
        conversation,
        "/help",
        "/system Be kind.",
        "/system",
        "/set",
        "/set temperature 0.5",
        "/set temperature 7",
        "/set seed 3",
        "/unset seed",
        "/unset sed",
        "/set top_k many",
        "/set nope 1",
        "/retry",
        "/nope",
        "hello",
        "/retry",
        "/clear",
        "again",
        "/exit",
        "never",
    )
    text = out.getvalue()
    for part in (
        "/clear",
        "system: Be kind.",
        "the model's own defaults",
        "temperature 0.5",
        "'many' is not a number",
        "no sampling parameter nope",
        "temperature must be from 0 to 2, got 7",
        "temperature 0.5, seed 3\ntemperature 0.5\n",
        "no sampling parameter sed",
        "nothing was said yet",
        "no command /nope",
        "forgotten",
    ):
        assert part in text
    assert talker.asked[1] == talker.asked[0]
    assert talker.asked[2] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "again"}]
    assert talker.sampling[2] == {"temperature": 0.5}
    assert talker.scripts == []


def test_sampling_parameters_are_parsed_by_name() -> None:
    assert parse_sampling("top_k", "5") == 5
    with pytest.raises(ConfigError, match="seed: 'x' is not a number"):
        parse_sampling("seed", "x")

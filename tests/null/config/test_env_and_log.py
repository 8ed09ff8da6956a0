"""The environment table and the log: what is read, escaped, hidden and dropped."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivium import env, log
from trivium.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_log() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("trivium")
    handlers, level, own_level = list(root.handlers), root.level, own.level
    secrets = list(log._secrets)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)
    log._secrets[:] = secrets


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _json_line(stream: io.StringIO) -> dict[str, object]:
    (line,) = stream.getvalue().splitlines()
    return json.loads(line)


def test_a_variable_is_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert env.get("HF_ENDPOINT", "x") == "x"
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror")
    assert env.get("HF_ENDPOINT", "x") == "http://mirror"
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert env.get("HF_ENDPOINT") is None


def test_an_empty_list_of_gpus_means_none_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert env.get("CUDA_VISIBLE_DEVICES") == ""


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("true", True), ("0", False), ("OFF", False), ("", False), ("no", False)])
def test_flags(monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert env.flag("HF_HUB_OFFLINE") is is_on


def test_a_variable_outside_the_table_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="missing from env.VARIABLES"):
        env.get("SOMETHING_ELSE")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIVIUM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert env.cache_dir() == Path("/x/trivium")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert env.cache_dir() == Path("/h/.cache/trivium")
    monkeypatch.setenv("TRIVIUM_CACHE", "/t")
    assert env.cache_dir() == Path("/t")


def test_settings_are_what_starts_with_the_prefix_and_is_not_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_PORT", "1")
    monkeypatch.setenv("TRIVIUM_LOG_LEVEL", "debug")
    assert env.settings() == {"TRIVIUM_PORT": "1"}


def test_a_childs_environment_is_a_copy_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "t")
    child = env.child({"HF_TOKEN": None, "A": "b"})
    assert "HF_TOKEN" not in child
    assert child["A"] == "b"
    assert env.get("HF_TOKEN") == "t"


def test_elsewhere_than_on_a_terminal_a_line_is_one_json_object() -> None:
    stream = io.StringIO()
    log.setup(stream=stream)
    logging.getLogger("trivium.engine").info("took %d ms", 5, extra={"request_id": "r-1", "status": 200, "unknown": "x"})
    entry = _json_line(stream)
    assert entry["level"] == "info"
    assert entry["msg"] == "took 5 ms"
    assert entry["logger"] == "trivium.engine"
    assert (entry["request_id"], entry["status"]) == ("r-1", 200)
    assert "unknown" not in entry
    assert str(entry["ts"]).endswith("Z")


def test_on_a_terminal_it_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    log.setup(stream=stream)
    logging.getLogger("trivium.engine").warning("slow", extra={"request_id": "r\n1"})
    line = stream.getvalue()
    assert "\x1b[33mWARNING" in line
    assert line.endswith("engine: slow (request_id=r\\n1)\n")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    log.setup(stream=stream)
    logging.getLogger("trivium").error("bad")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("style", ["human", "json"])
def test_a_request_cannot_forge_a_line_or_drive_the_terminal(style: str) -> None:
    stream = io.StringIO()
    log.setup(style=style, stream=stream)
    logging.getLogger("trivium").info("got %s", 'a\n{"level": "error"}\x1b[2J\u202e\u2028b\x9b', extra={"model": "m\r\nx"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    for char in "\x1b\u202e\u2028\x9b\r":
        assert char not in text


@pytest.mark.parametrize("style", ["human", "json"])
def test_secrets_are_never_shown(style: str) -> None:
    stream = io.StringIO()
    log.setup(style=style, stream=stream)
    log.register_secrets(["sk-secret", "sk-secret-longer", "ab"])
    try:
        raise ValueError("with sk-secret in it")
    except ValueError:
        logging.getLogger("trivium").exception("key sk-secret-longer; Authorization: Bearer other; cab", extra={"path": "/v1?api_key=third"})
    text = stream.getvalue()
    for secret in ("sk-secret", "other", "third", "longer"):
        assert secret not in text
    assert "cab" in text  # a secret of two letters would garble ordinary words
    assert "with *** in it" in text


@pytest.mark.parametrize("text", ["send the header 'Authorization: Bearer KEY'.", "(Authorization: Bearer KEY), on", "Bearer YOUR_KEY"])
def test_the_placeholder_of_help_texts_is_no_secret(text: str) -> None:
    assert log.redact(text) == text
    assert log.redact(text.replace("KEY", "KEYS")) != text.replace("KEY", "KEYS")


def test_the_level_holds_for_libraries_with_levels_of_their_own() -> None:
    stream = io.StringIO()
    log.setup(stream=stream, level="warning", style="json")
    assert log.is_json()
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel("INFO")
    logger.info("started")
    logger.warning("odd")
    assert [json.loads(line)["msg"] for line in stream.getvalue().splitlines()] == ["odd"]


def test_warnings_of_libraries_are_lines_like_any_other() -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # an earlier test's capture ended with that test
        log.setup(stream=stream, style="json")
        warnings.warn("old", FutureWarning, stacklevel=1)
        logging.captureWarnings(False)
    (line,) = stream.getvalue().splitlines()
    assert (json.loads(line)["logger"], "FutureWarning: old" in json.loads(line)["msg"]) == ("py.warnings", True)


def test_setting_up_again_replaces_the_handler() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.setup(stream=first)
    log.setup(stream=second)
    logging.getLogger("trivium").info("x")
    assert first.getvalue() == ""
    assert second.getvalue() != ""


def test_levels() -> None:
    stream = io.StringIO()
    log.setup(level="warning", stream=stream)
    logging.getLogger("trivium.a").info("hidden")
    logging.getLogger("other").info("hidden")
    logging.getLogger("other").warning("seen")
    assert _json_line(stream)["msg"] == "seen"


@pytest.mark.parametrize(("level", "style", "param"), [("loud", None, "log_level"), (None, "xml", "log_format")])
def test_unknown_levels_and_formats_are_config_errors(level: str | None, style: str | None, param: str) -> None:
    with pytest.raises(ConfigError, match="must be one of") as caught:
        log.setup(level=level, style=style, stream=io.StringIO())
    assert caught.value.param == param


def test_a_full_disk_drops_lines_and_counts_them() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log.setup(stream=Full())
    logging.getLogger("trivium").error("lost")
    assert log.dropped_lines() == 1

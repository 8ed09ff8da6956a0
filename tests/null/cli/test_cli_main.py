"""The command line as a caller sees it: exit codes, one-line errors, settings from flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trivium
from trivium import log
from trivium.cli import main as cli_main
from trivium.cli.main import COMMANDS, main
from trivium.config import ServerConfig
from trivium.config_io import settings_of
from trivium.errors import EngineDead, InvalidRequest, ModelLoadError, NotReady, TriviumError


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trivium {trivium.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Usage: trivium " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["srve"], "There is no command 'srve'. Did you mean serve?"),
        (["xyzzy"], "There is no command 'xyzzy'. Commands: serve, "),
        (["config", "show", "--blok-size", "8"], "There is no flag --blok-size; did you mean --block-size?"),
        (["config", "show", "--xyzzy", "8"], "There is no flag --xyzzy. (see"),
        (["config", "show", "--max-model-len", "-5"], "max_model_len must be at least 1, got -5 (from flag --max-model-len)"),
        (["serve", "--api-key", ""], "api_key must not be empty (from flag --api-key)"),
        (["run", "What is 2+2?"], "is no folder, file or hub name. To ask the packaged model: trivium run -p 'What is 2+2?'"),
        (["run", "", "a", "-p", "b"], "PROMPT and --prompt were both given"),
        (["run", "--temperature", "5"], "temperature must be from 0 to 2, got 5"),
        (["config", "show", "--max-model-len"], "requires an argument"),
        (["config", "show", "--max-model-len", "many"], "max_model_len: 'many' is not a whole number"),
        (["config", "show", "--block-size", "33"], "got 33 (from flag --block-size)"),
        (["config", "show", "--config", "/nowhere.yaml"], "can't read /nowhere.yaml"),
        (["config", "show", "--trust-remote-code"], "trust_remote_code is refused"),
        (["show", "--revision", "main"], "The packaged model has no revisions"),
        (["pull", "no such name"], "neither a file or folder here nor a hub name"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("args", [[], ["config"]])
def test_without_a_command_there_is_help_on_many_lines(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    err = capsys.readouterr().err
    assert err.startswith("Usage: trivium ")
    assert err.count("\n") > 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelLoadError("bad weights"), 1),
        (EngineDead("gone"), 1),
        (InvalidRequest("odd"), 2),
        (NotReady("later"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli_main.cli, "main", fail)
    assert main([]) == code
    expected = f"error: {error.message}\n" if isinstance(error, TriviumError) else ""
    assert capsys.readouterr().err == expected


def test_control_characters_of_an_error_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise ModelLoadError("a\x1b[2Jb\nc")

    monkeypatch.setattr(cli_main.cli, "main", fail)
    main([])
    assert capsys.readouterr().err == "error: a\\x1b[2Jb c\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("load failed for model 'm': version 1 is at UNAVAILABLE state: no;\n", "load failed for model 'm': version 1 is at UNAVAILABLE state: no"),
        ("1: boom;\n2: no;\n", "1: boom; 2: no"),
        ("ValueError: x\n\nAt:\n  m/1/model.py(3): load\n", "ValueError: x at m/1/model.py(3): load"),
        ("failed: ValueError: x\n\nAt:\n  m.py(3): load\n;\n", "failed: ValueError: x at m.py(3): load"),
        ("plain", "plain"),
    ],
)
def test_tritons_reasons_become_one_line(text: str, line: str) -> None:
    assert log.one_line(text) == line


def _show(args: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["config", "show", "--json", "--origin", *args]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--max-model-len", "32k"], "max_model_len", 32_000),
        (["--max_model_len=1K"], "max_model_len", 1024),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--enforce-eager"], "enforce_eager", True),
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["--served-model-name", "a", "--served-model-name", "b"], "served_model_name", ["a", "b"]),
        (["--served-model-name", "a,b"], "served_model_name", ["a", "b"]),
        (["--override-generation-config", '{"top_p": 0.5}'], "override_generation_config", {"top_p": 0.5}),
        (["--uvicorn-log-level", "warning"], "uvicorn_log_level", "warning"),
    ],
)
def test_flags_have_vllms_names_and_forms(args: list[str], name: str, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert _show(args, capsys)[name] == {"value": value, "origin": "flag"}


def test_show_tells_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 9\n")
    monkeypatch.setenv("TRIVIUM_SEED", "7")
    shown = _show(["--config", str(file)], capsys)
    assert shown["seed"] == {"value": 7, "origin": "TRIVIUM_SEED"}
    assert shown["port"] == {"value": 9, "origin": f"{file}:1"}
    assert list(shown) == list(settings_of(ServerConfig))


def test_show_for_people_and_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--origin", "--api-key", "very-secret"]) == 0
    out = capsys.readouterr().out
    assert "very-secret" not in out
    assert any(line.split() == ["api_key", '"***"', "flag"] for line in out.splitlines())


def test_check_counts_or_complains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 9\nseed: 1\n")
    assert main(["config", "check", str(file)]) == 0
    assert "2 settings, all valid" in capsys.readouterr().out
    file.write_text("port: 9\nsed: 1\n")
    assert main(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file}:2: sed is not a setting; did you mean seed?\n"


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "block_size" in json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize(("name", "what"), [("TRIVIUM_LOG_LEVEL", "level"), ("TRIVIUM_LOG_FORMAT", "format")])
def test_wrong_log_variables_are_told_by_config(name: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(name, "loud")
    assert main(["config", "show"]) == 2
    assert f"log {what} must be one of" in capsys.readouterr().err

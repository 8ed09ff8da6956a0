"""`trivium models load` and `unload` against answers of a server: what is said, and the exit code."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.cli.main import main
from trivium.cli.server_api import ServerApi
from trivium.errors import InvalidRequest, NotReady, TriviumError

INDEX = [{"name": "served", "version": "1", "state": "READY"}, {"name": "idle"}, {"name": "broken", "version": "1", "state": "UNAVAILABLE"}]


def answer_with(monkeypatch: pytest.MonkeyPatch, error: TriviumError | None = None) -> list[str]:
    """Paths that were asked for; loads and unloads fail with `error`."""
    asked: list[str] = []

    def call(_: ServerApi, method: str, path: str, body: object = None) -> Any:
        asked.append(path)
        if path.endswith("/index"):
            return INDEX
        if error is not None:
            raise error
        return None

    monkeypatch.setattr(ServerApi, "call", call)
    return asked


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, "m is loaded"),
        (
            InvalidRequest("load failed for model 'm': version 1 is at UNAVAILABLE state: no;\n"),
            1,
            "error: load failed for model 'm': version 1 is at UNAVAILABLE state: no",
        ),
        (
            NotReady("explicit model load / unload is not allowed if polling is enabled"),
            1,
            "error: explicit model load / unload is not allowed if polling is enabled (start the server with --model-control-mode explicit)",
        ),
        (NotReady("nothing answers at http://x"), 3, "error: nothing answers at http://x"),
    ],
)
def test_a_load(error: TriviumError | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answer_with(monkeypatch, error)
    assert main(["models", "load", "m"]) == code
    assert asked == ["/v2/repository/models/m/load"] and capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("served", 0, "served is being unloaded"),
        ("idle", 0, "idle wasn't loaded"),
        ("broken", 0, "broken wasn't loaded"),
        ("nosuch", 1, "error: there is no model 'nosuch' in the repository of http://localhost:8000"),
    ],
)
def test_an_unload(model: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answer_with(monkeypatch)
    assert main(["models", "unload", model]) == code
    assert (f"/v2/repository/models/{model}/unload" in asked) == (code == 0) and capsys.readouterr().err == f"{said}\n"

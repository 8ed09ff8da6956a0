"""The chat client against a scripted HTTP server on a free port."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trivium.cli.main import main
from trivium.cli.remote import RemoteTalker
from trivium.errors import ConfigError, GenerationFailed, InvalidRequest, NotReady, Unauthorized


class Script:
    """What the server answers next, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.lines: list[str] = []
        self.error = ""
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, body: bytes) -> None:
            self.send_response(scripted.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            scripted.requests.append((self.path, dict(self.headers), None))
            self._answer(json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scripted.requests.append((self.path, dict(self.headers), body))
            text = scripted.error if scripted.status != 200 else "".join(f"{line}\n" for line in scripted.lines)
            self._answer(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    scripted.url = f"http://127.0.0.1:{server.server_port}"
    yield scripted
    server.shutdown()
    thread.join()
    server.server_close()


def _chunk(text: str | None, **extra: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text} if text is not None else {"role": "assistant"}, **extra}]})


def _ask(talker: RemoteTalker) -> str:
    return "".join(talker.reply([{"role": "user", "content": "hi"}], {"temperature": 0.0}))


def test_a_streamed_answer(script: Script) -> None:
    usage = 'data: {"choices": [], "usage": {}}'
    script.lines = [_chunk(None), "", ": comment", _chunk("Pa"), "", _chunk("ris"), _chunk("", finish_reason="stop"), usage, "data: [DONE]"]
    talker = RemoteTalker(script.url + "/v1/", model="m", api_key="k")
    assert _ask(talker) == "Paris"
    path, headers, body = script.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer k"
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0.0}


def test_without_a_model_the_servers_first_is_taken(script: Script) -> None:
    assert RemoteTalker(script.url, model="", api_key=None).model == "first"
    assert "Authorization" not in script.requests[0][1]


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (400, '{"error": {"message": "too long"}}', InvalidRequest, "too long"),
        (401, '{"error": {"message": "no key"}}', Unauthorized, "wants an API key: name it with --api-key"),
        (503, '{"error": {"message": "loading"}}', NotReady, "loading"),
        (500, "<html>", GenerationFailed, "answered 500"),
        (400, '"x"', InvalidRequest, "answered 400"),
    ],
)
def test_errors_of_the_server_keep_their_kind(script: Script, status: int, body: str, error: type[Exception], message: str) -> None:
    script.status, script.error = status, body
    with pytest.raises(error, match=message):
        _ask(RemoteTalker(script.url, model="m", api_key=None))


@pytest.mark.parametrize(
    ("lines", "message"),
    [([_chunk("Pa")], "before its end"), ([_chunk("Pa"), 'data: {"error": {"message": "engine died"}}'], "engine died")],
)
def test_a_stream_that_breaks_off_is_an_error(script: Script, lines: list[str], message: str) -> None:
    script.lines = lines
    with pytest.raises(GenerationFailed, match=message):
        _ask(RemoteTalker(script.url, model="m", api_key=None))


def test_a_key_that_is_refused_is_told_from_one_that_is_missing(script: Script) -> None:
    script.status, script.error = 401, '{"error": {"message": "wrong"}}'
    with pytest.raises(Unauthorized, match="refused the key of --api-key: wrong"):
        _ask(RemoteTalker(script.url, model="m", api_key="k"))


def test_nothing_there_is_not_ready() -> None:
    with pytest.raises(NotReady, match="nothing answers at http://127.0.0.1:1"):
        RemoteTalker("127.0.0.1:1", model="", api_key=None)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "file:///etc/passwd"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="not an http or https URL"):
        RemoteTalker(url, model="m", api_key=None)


def test_piped_text_is_answered_on_standard_output_alone(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script.lines = [_chunk("Paris"), "data: [DONE]"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("The capital of France?\n"))
    assert main(["chat", "m", "Answer:", "--url", script.url, "--api-key", "k", "--temperature", "0", "--system", "s"]) == 0
    assert capsys.readouterr() == ("Paris\n", "")
    _, headers, body = script.requests[0]
    assert headers["Authorization"] == "Bearer k"
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "Answer:\n\nThe capital of France?"}]
    assert (body["temperature"], body["max_tokens"]) == (0.0, 512)


@pytest.mark.parametrize(
    ("model", "args", "sampling"),
    [
        ("SmolLM2-135M-Instruct", [], {"temperature": 0.0, "max_tokens": 512}),
        ("SmolLM2-135M-Instruct", ["--temperature", "0.5", "--max-tokens", "3"], {"temperature": 0.5, "max_tokens": 3}),
        ("another", [], {"max_tokens": 512}),
    ],
)
def test_only_the_packaged_model_is_greedy_by_default(
    model: str, args: list[str], sampling: dict[str, Any], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.lines = ["data: [DONE]"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["run", model, "-p", "Hi", "--url", script.url, *args]) == 0
    body = script.requests[0][2]
    assert {name: value for name, value in body.items() if name not in ("model", "messages", "stream")} == sampling


@pytest.mark.parametrize(
    ("args", "stdin", "code", "message"),
    [
        (["--url", "127.0.0.1:1"], "hi", 3, "nothing answers"),
        (["--url", "127.0.0.1:1"], " ", 2, "standard input is empty"),
        (["--url", "127.0.0.1:1", "--dtype", "auto"], "hi", 2, "dtype: engine settings have no effect with --url"),
        (["--url", "127.0.0.1:1", "--temperature", "hot"], "hi", 2, "temperature: 'hot' is not a number"),
    ],
)
def test_exit_codes_of_chat(
    args: list[str], stdin: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    assert main(["chat", *args]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err

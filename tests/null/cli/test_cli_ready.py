"""The block at the end of start-up, and the progress before it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shlex

import pytest
from rich.console import Console

from trivium.cli.ready import Capacity, base_url, curl_command, ready_block
from trivium.cli.terminal import Steps, format_amount, format_bytes
from trivium.config import HttpConfig, ServerConfig
from trivium.protocol.messages import EngineReady

READY = EngineReady(
    vocab_size=100,
    max_model_len=8192,
    max_num_seqs=64,
    num_blocks=1024,
    block_size=16,
    device="cpu",
    dtype="bfloat16",
    memory={"weights": 1 << 28, "kv_cache": 3 << 29},
    notes=["dtype bfloat16: because", "max_num_seqs 64: the default"],
)


def test_capacity_is_told_in_tokens_and_in_full_contexts() -> None:
    assert Capacity.of(READY) == Capacity(tokens=16_384, max_concurrency=2.0)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://localhost:1"), ("::", "http://localhost:1"), ("::1", "http://[::1]:1"), ("10.0.0.5", "http://10.0.0.5:1")],
)
def test_the_url_works_on_this_machine(host: str, url: str) -> None:
    assert base_url(host, 1) == url


def test_the_curl_command_survives_the_shell() -> None:
    words = shlex.split(curl_command("http://x", "it's", has_chat=True, needs_key=False))
    assert words[:2] == ["curl", "http://x/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"


def test_a_model_without_a_chat_template_gets_a_completion() -> None:
    words = shlex.split(curl_command("http://x", "m", has_chat=False, needs_key=True))
    assert words[1] == "http://x/v1/completions"
    assert "Authorization: Bearer YOUR_KEY" in words


def test_the_block_has_everything_and_no_key() -> None:
    config = ServerConfig(http=HttpConfig(api_key=("very-secret",)))
    text = ready_block(config, READY, model="m", port=8001, has_chat=True, start_s=1.26)
    assert text.splitlines()[0].endswith("is ready after 1.3 s: http://localhost:8001")
    for part in (
        "http://localhost:8001/docs",
        "16,384 tokens",
        "2.0 full contexts;",
        "weights 256.0 MiB, kv_cache 1.5 GiB",
        "chosen      dtype bfloat16",
        "curl http",
    ):
        assert part in text
    assert "very-secret" not in text
    assert "http://localhost:8001/docs (needs the API key)" in text
    assert "no API key" not in text


@pytest.mark.parametrize(("host", "is_told"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False)])
def test_a_server_open_to_all_says_so(host: str, is_told: bool) -> None:
    text = ready_block(ServerConfig(http=HttpConfig(host=host)), READY, model="m", port=1, has_chat=True, start_s=1)
    assert ("listening on all interfaces, no API key" in text) == is_told


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (5 << 40, "5.0 TiB"), (5 << 50, "5120.0 TiB")]
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [(512, 1024, "bytes", "512 B of 1.0 KiB"), (5, 0, "bytes", "5 B"), (3, 9, "graphs", "3 of 9 graphs"), (3, 0, "", "3")],
)
def test_amounts(done: int, total: int, unit: str, text: str) -> None:
    assert format_amount(done, total, unit) == text


def test_without_a_terminal_there_is_a_line_each_ten_per_cent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trivium.progress")
    with Steps(Console(file=io.StringIO())) as steps:
        steps.update("importing torch", 0, 0)
        for done in range(101):
            steps.update("loading weights", done, 100, "tensors")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "importing torch"
    assert [line.split(" %")[0] for line in lines[1:]] == [f"loading weights: {percent}" for percent in range(0, 101, 10)]


def test_on_a_terminal_each_step_has_a_bar_that_ends_full() -> None:
    out = io.StringIO()
    with Steps(Console(file=out, force_terminal=True, width=120)) as steps:
        steps.update("importing torch", 0, 0)
        steps.update("loading weights", 10, 100, "bytes")
        steps.update("capturing graphs", 1, 9, "graphs")
    last = out.getvalue().rsplit("importing torch", 1)[1]
    assert "100 B of 100 B" in last
    assert "9 of 9 graphs" in last


def test_a_failed_step_does_not_look_finished() -> None:
    out = io.StringIO()
    with contextlib.suppress(ValueError), Steps(Console(file=out, force_terminal=True, width=120)) as steps:
        steps.update("loading weights", 10, 100, "bytes")
        raise ValueError
    assert "loading weights" in out.getvalue()
    assert "100 B of 100 B" not in out.getvalue()

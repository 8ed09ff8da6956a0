"""The installed command as a user runs it: a real server process around the packaged model's shape, with dummy weights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trivium.sources.packaged import NAME, packaged_model

ROOT = Path(__file__).parents[2]
SMALL = ["--load-format", "dummy", "--dtype", "float32", "--max-model-len", "256", "--num-gpu-blocks-override", "64", "--max-num-seqs", "4"]
START_LIMIT_S = 90

pytestmark = pytest.mark.skipif(packaged_model() is None, reason="the packaged model is not installed")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def _run(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trivium", *args]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=_environment(), timeout=START_LIMIT_S, check=False)


class Served:
    """`trivium serve` in a process of its own, with its output in files."""

    def __init__(self, folder: Path, *args: str, style: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-m", "trivium", "serve", "--host", "127.0.0.1", "--port", "0", *args]
        environment = {**_environment(), "TRIVIUM_LOG_FORMAT": style}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        self.url = self._wait_until_ready()

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            port = re.search(r'"msg": "ready".* "port": (\d+)|ready \(.*port=(\d+)', self.err.read_text())
            if port is not None:
                return f"http://127.0.0.1:{port[1] or port[2]}"
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.1)
        raise AssertionError("not ready in time:\n" + self.err.read_text())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"), *SMALL, style="human")
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


def test_the_ready_block_tells_the_truth(served: Served) -> None:
    text = served.out.read_text()
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    assert "1,024 tokens, 4.0 full contexts; at most 4 sequences" in text
    for route in ("/metrics", "/health", "/docs"):
        assert f"{served.url}{route}" in text
        assert httpx.get(f"{served.url}{route}", follow_redirects=True).status_code == 200


def test_the_curl_command_of_the_ready_block_works(served: Served) -> None:
    block = served.out.read_text().split("Try it:")[1]
    command = block.strip().replace("curl ", "curl -sS ", 1)
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    reply = json.loads(answer.stdout)
    assert reply["choices"][0]["message"]["role"] == "assistant", reply


def test_in_json_standard_error_is_one_object_a_line_and_standard_output_is_empty(tmp_path: Path) -> None:
    server = Served(tmp_path, *SMALL, style="json")
    try:
        httpx.get(f"{server.url}/readyz")
        httpx.get(f"{server.url}/version")
    finally:
        assert server.stop() == 0
    assert server.out.read_text() == ""
    entries = [json.loads(line) for line in server.err.read_text().splitlines()]
    ready = next(entry for entry in entries if entry["msg"] == "ready")
    assert ready["model"] == NAME
    assert ready["port"] == int(server.url.rsplit(":", 1)[1])
    messages = [entry["msg"] for entry in entries]
    assert any(message.startswith("importing torch") for message in messages)
    assert any("1,024 tokens, 4.0 full contexts" in message for message in messages)
    assert any("/version" in message for message in messages)
    assert not any("/readyz" in message for message in messages)


def test_chat_talks_to_the_server_and_prints_only_the_answer(served: Served) -> None:
    result = _run("chat", "--url", served.url, "--max-tokens", "4", "--temperature", "0", text="Hello")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("\n")


def test_a_wrong_model_name_is_told_in_one_line(served: Served) -> None:
    result = _run("chat", "nonsense", "--url", served.url, text="Hello")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "error: The model 'nonsense' does not exist. Models here: SmolLM2-135M-Instruct.\n"


def test_a_second_server_on_the_port_gives_up_at_once(served: Served) -> None:
    start = time.monotonic()
    port = served.url.rsplit(":", 1)[1]
    result = _run("serve", "--host", "127.0.0.1", "--port", port)
    assert result.returncode == 2
    assert port in result.stderr
    assert "Traceback" not in result.stderr
    assert time.monotonic() - start < 10


def test_sigterm_ends_with_exit_code_0_and_leaves_no_engine(served: Served) -> None:
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    assert children
    assert served.stop() == 0
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["/nowhere/at-all"], 1, "error: There is no file or folder /nowhere/at-all."),
        (["--max-model-len", "99999999"], 2, "max_model_len"),
        (["--chat-template", "{% if %}"], 2, "chat template"),
    ],
)
def test_what_cannot_be_served_is_one_line_without_a_traceback(args: list[str], code: int, message: str) -> None:
    result = _run("serve", "--host", "127.0.0.1", "--port", "0", *args)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == code, result.stderr
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in result.stderr


def test_chat_without_a_server_starts_an_engine_of_its_own() -> None:
    result = _run("run", "", "Say something.", "--max-tokens", "3", "--temperature", "0", *SMALL)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("\n")


def test_doctor_finds_nothing_wrong_here() -> None:
    result = _run("doctor", "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == 0, facts
    assert facts["device"]["torch"]
    assert facts["packaged_model"] == str(packaged_model())


def test_show_and_pull_know_the_packaged_model() -> None:
    facts = json.loads(_run("show", "--json").stdout)
    assert (facts["architecture"], facts["layers"], facts["context_length"]) == ("LlamaForCausalLM", 30, 8192)
    assert facts["file_type"] == "Q4_1"
    assert _run("pull").stdout == f"{packaged_model()}\n"

"""The end of a server, the death of its engine, and what probes say meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers_server import SCRIPT, ServerProcess, events, post_bytes


@pytest.fixture
def start() -> Iterator[Any]:
    started: list[ServerProcess] = []

    def start(**options: Any) -> ServerProcess:
        started.append(ServerProcess(**options))
        return started[-1]

    yield start
    for process in started:
        process.stop()


def stream_in_thread(server: ServerProcess, body: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    """A streaming request whose first chunk has come when this returns."""
    result: list[Any] = []
    has_begun = threading.Event()

    def run() -> None:
        text = ""
        with server.http() as http, http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            for chunk in answer.iter_text():
                text += chunk
                has_begun.set()
        result.extend(events(text))

    thread = threading.Thread(target=run)
    thread.start()
    assert has_begun.wait(10)
    return thread, result


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_with_0(start: Any, number: int) -> None:
    server = start()
    with server.http() as http:
        assert http.get("/livez").status_code == 200  # a connection that stays open
        started = time.monotonic()
        server.signal(number)
        assert server.wait() == 0
    assert time.monotonic() - started < 2
    assert "Traceback" not in "".join(server.log)


def test_accepted_requests_finish_and_new_ones_are_refused(start: Any) -> None:
    server = start(engine={"step_s": 0.01})
    thread, result = stream_in_thread(server, {"prompt": "abc", "max_tokens": 150, "temperature": 0})
    with server.http() as http:
        server.signal(signal.SIGTERM)
        deadline = time.monotonic() + 0.5
        while (ready := http.get("/readyz")).status_code == 200:
            assert time.monotonic() < deadline
        assert ready.status_code == 503
        assert http.get("/livez").status_code == 200
        refused = http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.headers["connection"] == "close"
    assert server.wait() == 0
    thread.join(10)
    assert result[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in result[:-1]) == "abc" * 50
    assert "Traceback" not in "".join(server.log)


def test_streams_with_logprobs_and_echo_finish_too(start: Any) -> None:
    server = start(engine={"step_s": 0.02})
    thread, result = stream_in_thread(server, {"prompt": "abc", "max_tokens": 20, "logprobs": 1, "echo": True})
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    thread.join(10)
    assert result[-1] == "[DONE]"


def test_during_the_drain_delay_requests_are_still_accepted(start: Any) -> None:
    server = start(http={"drain_delay_s": 1.0})
    with server.http() as http:
        server.signal(signal.SIGTERM)
        deadline = time.monotonic() + 0.5
        while http.get("/readyz").status_code == 200:
            assert time.monotonic() < deadline
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert server.wait() == 0


def test_at_the_drain_limit_streams_end_with_an_error(start: Any) -> None:
    server = start(http={"drain_timeout_s": 0.3}, engine={"step_s": 0.05})
    thread, result = stream_in_thread(server, {"prompt": "abc", "max_tokens": 1000})
    started = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - started < 3
    thread.join(10)
    assert result[-1]["error"]["code"] == "not_ready"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_second_signal_stops_at_once(start: Any, number: int, code: int) -> None:
    server = start(engine={"step_s": 0.05})
    with server.raw(post_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 1000, "stream": True})) as connection:
        connection.read_until(b"data: ")
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        time.sleep(0.2)
        server.signal(number)
        assert server.wait() == code
        assert time.monotonic() - started < 2
    assert any("waiting up to 30 s for 1 request;" in line for line in server.log)


def test_a_second_signal_that_costs_nobody_anything_is_no_failure(start: Any) -> None:
    server = start()
    httpx.get(f"{server.url}/livez")
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGINT)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_port_in_use_is_told_at_once(start: Any) -> None:
    server = start()
    command = [sys.executable, str(SCRIPT), f'{{"http": {{"port": {server.port}}}}}']
    other = subprocess.run(command, capture_output=True, text=True, timeout=20, env=_environment(), check=False)
    assert other.returncode != 0
    assert f"port {server.port}" in other.stderr


def _environment() -> dict[str, str]:
    import os

    from helpers_server import ROOT

    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_when_the_engine_dies_its_requests_get_an_error_and_service_comes_back(start: Any) -> None:
    server = start(engine={"restart_s": 1.0, "step_s": 0.01})
    with server.http() as http:
        answer = http.post("/v1/completions", json={"prompt": "!die", "max_tokens": 100, "stream": True})
        assert events(answer.text)[-1]["error"]["code"] == "engine_dead"
        for path in ("/readyz", "/health"):
            assert http.get(path).status_code == 503
        assert http.get("/livez").status_code == 200
        refused = http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert server.metrics()['trivium:engine_up{engine="0",model_name="fake"}'] == 0
        deadline = time.monotonic() + 5
        while http.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert "Traceback" not in "".join(server.log)


def test_a_whole_answer_from_a_dying_engine_is_503(start: Any) -> None:
    server = start(engine={"restart_s": 1.0})
    with server.http() as http:
        answer = http.post("/v1/completions", json={"prompt": "!die", "max_tokens": 100})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"


def test_an_engine_that_hangs_is_not_ready_but_alive(start: Any) -> None:
    server = start(http={"probe_timeout_s": 0.5})
    with server.http() as http:
        assert http.get("/readyz").status_code == 200
        with server.raw(post_bytes("/v1/completions", {"prompt": "!hang", "max_tokens": 100})):
            time.sleep(0.1)
            deadline = time.monotonic() + 1.5
            while http.get("/readyz").status_code != 503:
                assert time.monotonic() < deadline
            assert http.get("/livez").status_code == 200
            assert http.get("/health").status_code == 200
            assert http.get("/metrics").status_code == 200


def test_a_deadline_ends_a_request_even_when_the_engine_hangs(start: Any) -> None:
    server = start()
    with server.http() as http:
        answer = http.post("/v1/completions", json={"prompt": "!hang", "max_tokens": 100}, headers={"X-Request-Timeout": "0.3"})
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert server.metrics()['vllm:num_requests_running{engine="0",model_name="fake"}'] == 0


def test_a_deadline_inside_a_stream_is_an_event(start: Any) -> None:
    server = start(http={"request_timeout_s": 0.3}, engine={"step_s": 0.01})
    with server.http() as http:
        answer = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1000, "stream": True})
        assert events(answer.text)[-1]["error"]["code"] == "deadline_exceeded"


def test_a_full_queue_is_429_with_retry_after_and_recovers(start: Any) -> None:
    server = start(http={"max_queued_requests": 1}, engine={"max_num_seqs": 1, "step_s": 0.005})
    body = {"prompt": "abc", "max_tokens": 100, "stream": True}
    with server.http() as http:
        with server.raw(post_bytes("/v1/completions", body)) as first, server.raw(post_bytes("/v1/completions", body)) as second:
            first.read_until(b"data: ")
            deadline = time.monotonic() + 5
            while server.metrics()['vllm:num_requests_waiting{engine="0",model_name="fake"}'] == 0:
                assert time.monotonic() < deadline
            started = time.monotonic()
            refused = http.post("/v1/completions", json=body)
            assert time.monotonic() - started < 0.5
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert http.get("/health").status_code == 200
            second.read_until(b"[DONE]")
        assert http.post("/v1/completions", json={**body, "stream": False}).status_code == 200
        assert server.metrics()['vllm:admission_rejections_total{model_name="fake",reason="queue_full"}'] == 1


def test_more_sequences_than_ever_fit_are_the_requests_fault(start: Any) -> None:
    server = start(http={"max_queued_requests": 1}, engine={"max_num_seqs": 2})
    with server.http() as http:
        for body, param in (
            ({"prompt": "a", "n": 4}, "n"),
            ({"prompt": ["a", "b"], "n": 4}, "n"),
            ({"prompt": ["a", "b", "c", "d"]}, "prompt"),
            ({"prompt": ["a", "b"], "n": 2}, "prompt"),
        ):
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param


def test_the_client_library_retries_a_full_queue(start: Any) -> None:
    server = start(http={"max_queued_requests": 0}, engine={"max_num_seqs": 1, "step_s": 0.01})
    with server.raw(post_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 50, "stream": True})) as first:
        first.read_until(b"data: ")
        with server.openai(max_retries=3) as client:
            assert client.completions.create(model="fake", prompt="x", max_tokens=1).choices[0].text == "x"


def test_idle_it_uses_no_processor(start: Any) -> None:
    server = start()
    httpx.get(f"{server.url}/readyz")
    before = server.metrics()["process_cpu_seconds_total"]
    time.sleep(3)
    assert server.metrics()["process_cpu_seconds_total"] - before < 0.06

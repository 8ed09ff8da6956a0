"""A burst at the queue: bounded, fair between clients, no refusal without a way back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers_server import ServerProcess, post_bytes

OPTIONS = {"engine": {"max_num_seqs": 8, "step_s": 0.002}, "http": {"fairness_header": "X-User", "metrics_names": ["vllm", "tgi"]}}


def ask(url: str, user: str, *, path: str = "/generate", num_tokens: int = 8) -> tuple[float, int]:
    """Seconds and status."""
    body: dict[str, Any] = {"inputs": "abcdef", "parameters": {"max_new_tokens": num_tokens}}
    if path == "/v1/completions":
        body = {"prompt": "abcdef", "max_tokens": num_tokens}
    elif path.endswith("/infer"):
        text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["abcdef"]}
        body = {"inputs": [text], "parameters": {"max_tokens": num_tokens}}
    elif path.startswith("/v2"):
        body = {"text_input": "abcdef", "max_tokens": num_tokens}
    answer = httpx.post(f"{url}{path}", json=body, headers={"x-user": user}, timeout=30)
    return answer.elapsed.total_seconds(), answer.status_code


def test_a_burst_is_served_without_an_error(server: ServerProcess) -> None:
    with ThreadPoolExecutor(64) as threads:
        answers = list(threads.map(lambda index: ask(server.url, f"user-{index % 7}"), range(128)))
    assert {status for _, status in answers} == {200}


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v2/models/fake/generate", "/v2/models/fake/infer"])
def test_a_crowd_does_not_keep_another_client_waiting(server: ServerProcess, path: str) -> None:
    with ThreadPoolExecutor(64) as threads:
        crowd = [threads.submit(ask, server.url, "crowd", path=path, num_tokens=60) for _ in range(60)]
        crowd[2].result()
        late = ask(server.url, "late", path=path)
        crowd_times = sorted(future.result()[0] for future in crowd)
    assert late[1] == 200
    # Without turns it would come after nearly all of the crowd.
    assert late[0] < crowd_times[-1] / 2


def test_metrics_count_who_waits(server: ServerProcess) -> None:
    found = server.metrics()
    assert found['trivium:num_requests_held{model_name="fake"}'] == 0
    assert found['tgi_queue_size{model_name="fake"}'] == 0
    assert found["tgi_request_count"] >= 128
    assert found['tgi_request_success{model_name="fake"}'] >= 128


def wait_for_requests(process: ServerProcess, count: int) -> None:
    """Until so many are being answered; the one that asks for metrics is another."""
    deadline = time.monotonic() + 10
    while process.metrics()["http_requests_in_flight"] < count + 1:
        assert time.monotonic() < deadline


def test_a_full_queue_answers_at_once_with_a_time_to_come_back() -> None:
    process = ServerProcess(engine={"max_num_seqs": 1}, http={"max_queued_requests": 1})
    hanging = post_bytes("/generate", {"inputs": "!hang"})
    try:
        with process.http() as http, process.raw(hanging), process.raw(hanging):
            wait_for_requests(process, 2)
            for path, body in (
                ("/generate", {"inputs": "a"}),
                ("/generate_stream", {"inputs": "a"}),
                ("/", {"inputs": "a"}),
                ("/invocations", {"inputs": "a"}),
                ("/vertex", {"instances": [{"inputs": "a"}]}),
            ):
                answer = http.post(path, json=body)
                assert (answer.status_code, answer.json()) == (429, {"error": "Model is overloaded", "error_type": "overloaded"})
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.elapsed.total_seconds() < 0.5
            completion = http.post("/v1/completions", json={"prompt": "a"})
            assert (completion.status_code, completion.json()["error"]["code"]) == (429, "overloaded")
    finally:
        process.stop()


def test_a_wait_that_takes_too_long_ends_with_429() -> None:
    process = ServerProcess(engine={"max_num_seqs": 1}, http={"queue_timeout_s": 0.1})
    hanging = post_bytes("/generate", {"inputs": "!hang"})
    try:
        # One more than runs is handed to the engine; those behind it wait for their turn.
        with process.http() as http, process.raw(hanging), process.raw(hanging):
            wait_for_requests(process, 2)
            answer = http.post("/generate", json={"inputs": "a"})
            assert (answer.status_code, answer.json()["error_type"]) == (429, "overloaded")
            assert 0.1 <= answer.elapsed.total_seconds() < 5
    finally:
        process.stop()

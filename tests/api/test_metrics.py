"""Every series is seen to move, and requests are counted as the client saw them."""

from __future__ import annotations

import time

import httpx
from helpers_server import ServerProcess, post_bytes

from trivium.metrics import catalogue as c

OPTIONS = {"engine": {"step_s": 0.002, "max_num_seqs": 2, "max_model_len": 50_000}, "http": {"max_queued_requests": 2}}
MOVED_ELSEWHERE = ("trivium:log_lines_dropped", "trivium:worker_restarts")
"""By the command line and by models of a repository, which this server has neither of: see the tests of logs and of worker processes."""
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "http_requests_in_flight", "trivium:engine_up")


def by_metric(samples: dict[str, float]) -> dict[str, dict[str, float]]:
    """Samples of each metric of the catalogue: a counter's total, a gauge's value, a histogram's count."""
    suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}
    return {m.name: {key: value for key, value in samples.items() if key.split("{")[0] == m.name + suffix[m.kind]} for m in c.CATALOGUE}


def test_every_series_moves(server: ServerProcess, http: httpx.Client) -> None:
    before = by_metric(server.metrics())
    long = {"prompt": "abc", "max_tokens": 40_000, "stream": True}
    raised: dict[str, float] = {}
    with server.raw(post_bytes("/v1/completions", {**long, "n": 2, "temperature": 1})) as running:
        running.read_until(b"data: ")
        with server.raw(post_bytes("/v1/completions", {**long, "n": 2, "temperature": 1})):
            deadline = time.monotonic() + 5
            while not all(raised.get(name) for name in GAUGES):
                found = by_metric(server.metrics())
                for name in GAUGES:
                    raised[name] = max(raised.get(name, 0), *found[name].values())
                assert time.monotonic() < deadline, raised
            assert http.post("/v1/completions", json=long).status_code == 429
    wait_until_idle(server)
    http.post("/v1/completions", json={"prompt": "!cached " * 10 + "!preempt", "max_tokens": 5})
    http.post("/v1/completions", json={"prompt": "!end", "max_tokens": 20})
    http.post("/v1/completions", json={"prompt": "!fail", "max_tokens": 20})
    after = by_metric(server.metrics())
    for metric in c.CATALOGUE:
        if metric.name in (*GAUGES, *MOVED_ELSEWHERE):
            continue
        grown = [key for key, value in after[metric.name].items() if value > before[metric.name].get(key, 0)]
        assert grown or metric.name in ("vllm:cache_config_info", "trivium:num_requests_held"), f"{metric.name} did not move"
    assert list(after["vllm:cache_config_info"].values()) == [1.0]
    for reason in ("stop", "length", "abort", "error"):
        key = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="fake"}}'
        assert after["vllm:request_success"][key] >= 1, reason


def wait_until_idle(server: ServerProcess) -> None:
    deadline = time.monotonic() + 2
    while server.metrics()['vllm:num_requests_running{engine="0",model_name="fake"}']:
        assert time.monotonic() < deadline


def test_requests_are_counted_by_route_method_and_status_and_labels_stay_closed(server: ServerProcess, http: httpx.Client) -> None:
    before = server.metrics()
    statuses = [
        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code,
        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 0}).status_code,
        *(http.get(f"/no/such/route/{number}").status_code for number in range(20)),
        *(http.get(f"/v1/models/{name}").status_code for name in ("fake", "other", "and/another")),
        http.request("PURGE", "/v1/models").status_code,
    ]
    after = server.metrics()
    grown = {key: value - before.get(key, 0) for key, value in after.items() if key.startswith("http_requests_total") and value != before.get(key, 0)}
    own = {key: count for key, count in grown.items() if "/metrics" not in key}
    assert sum(own.values()) == len(statuses)
    assert own == {
        'http_requests_total{handler="/v1/completions",method="POST",status="200"}': 1,
        'http_requests_total{handler="/v1/completions",method="POST",status="400"}': 1,
        'http_requests_total{handler="other",method="GET",status="404"}': 20,
        'http_requests_total{handler="/v1/models/{model}",method="GET",status="200"}': 1,
        'http_requests_total{handler="/v1/models/{model}",method="GET",status="404"}': 2,
        'http_requests_total{handler="/v1/models",method="other",status="405"}': 1,
    }

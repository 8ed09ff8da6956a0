"""Worker processes behind a real server: crashes under load, models that call models, what is left after an unload."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers_real_server import RealServer

FRAGILE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if array[0] == 666:
                os.kill(os.getpid(), 9)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + 1), pb_utils.Tensor("PID", np.array([os.getpid()], np.int64))]))
        return answers
"""
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("example_calls", "Calls of other models.", pb_utils.MetricFamily.COUNTER)
        self.calls = family.Metric({"model": "fragile"})

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.calls.increment(1)
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if array[0] == 5:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([pb_utils.is_model_ready("fragile")], np.float32))])
        inner = pb_utils.InferenceRequest(model_name="fragile", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", array)]).exec()
        if inner.has_error():
            return pb_utils.InferenceResponse(error=inner.error())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", inner.output_tensors()[0].as_numpy() * 10)])
"""
CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } %s ]
instance_group [ { count: %d kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    repository = tmp_path_factory.mktemp("models")
    pid = ', { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }'
    for name, code, outputs, count in (("fragile", FRAGILE, pid, 2), ("steady", FRAGILE, pid, 1), ("caller", CALLER, "", 1)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(CONFIG % (outputs, count))
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-python-models", "--allow-grpc=false", "--allow-metrics=false")
    process = RealServer("--model-repository", str(repository), *flags)
    yield process
    process.stop()


def infer(client: httpx.Client, model: str, value: float) -> httpx.Response:
    body = {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [value]}]}
    return client.post(f"/v2/models/{model}/infer", json=body)


def output(answer: httpx.Response, name: str = "OUT") -> float:
    return {tensor["name"]: tensor["data"][0] for tensor in answer.json()["outputs"]}[name]


def test_a_crash_fails_only_its_request_and_the_instance_is_back(server: RealServer) -> None:
    found: Counter[tuple[str, int]] = Counter()
    stop = threading.Event()

    def load(model: str) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                found[model, infer(client, model, 1.0).status_code] += 1

    threads = [threading.Thread(target=load, args=(model,)) for model in ("fragile", "fragile", "steady")]
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for _ in range(3):
            before = found["steady", 200]
            answer = infer(client, "fragile", 666.0)
            assert answer.status_code == 503
            assert "ended unexpectedly (signal 9)" in answer.json()["error"]
            begin = time.monotonic()
            assert infer(client, "fragile", 1.0).status_code == 200
            assert time.monotonic() - begin < 2.0
            assert found["steady", 200] >= before
    stop.set()
    for thread in threads:
        thread.join()
    assert set(found) == {("fragile", 200), ("steady", 200)}
    # The other instance may have answered before the one that crashed last was started again.
    deadline = time.monotonic() + 10
    while 'trivium:worker_restarts_total{model="fragile",version="1"} 3' not in (samples := httpx.get(f"{server.url}/metrics", timeout=30).text):
        assert time.monotonic() < deadline, samples
        time.sleep(0.05)
    assert 'trivium:worker_restarts_total{model="steady"' not in samples


def test_models_call_models_and_count(server: RealServer) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        assert output(infer(client, "caller", 2.0)) == 30.0
        assert output(infer(client, "caller", 5.0)) == 1.0
        failed = infer(client, "caller", 666.0)
        assert failed.status_code == 503
        assert "ended unexpectedly" in failed.json()["error"]
        assert output(infer(client, "caller", 2.0)) == 30.0
        assert 'example_calls{model="fragile"} 4' in client.get("/metrics").text


def test_unloading_ends_the_processes(server: RealServer) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        pids = [int(output(infer(client, "steady", 1.0), "PID"))]
        for _ in range(2):
            assert client.post("/v2/repository/models/steady/unload").status_code == 200
            wait_until_gone(pids.pop())
            assert infer(client, "steady", 1.0).status_code == 404
            assert client.post("/v2/repository/models/steady/load").status_code == 200
            pids.append(int(output(infer(client, "steady", 1.0), "PID")))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)

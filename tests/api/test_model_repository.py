"""`trivium serve --model-repository` as a user starts it: models of every kind in one server, changed under load, broken ones beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from helpers_real_server import ROOT, RealServer

from trivium.sources import packaged

MODEL_PY = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

VERSION = 1.0


class TritonPythonModel:
    def initialize(self, args):
        pass

    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            time.sleep(0.001)
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", (array * 0 + VERSION).astype(np.float32))]))
        return answers
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "plain" model_version: -1 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } ] }
"""
ARTICLE = """
name: "article"
backend: "vllm"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "output" data_type: TYPE_STRING dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100000 preferred_batch_size: [ 4, 8, 16 ] }
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_version(repository: Path, name: str, version: int, text: str = MODEL_PY) -> None:
    write(repository / name / str(version) / "model.py", text.replace("VERSION = 1.0", f"VERSION = {version}.0"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("plain", "swap"):
        write(path / name / "config.pbtxt", CONFIG)
        write_version(path, name, 1)
    write(path / "ens" / "config.pbtxt", ENSEMBLE)
    write(path / "syntax" / "config.pbtxt", "max_batch_size: x\n")
    write(path / "crash" / "config.pbtxt", CONFIG)
    write_version(path, "crash", 1, "raise RuntimeError('boom')\n")
    write(path / "article" / "config.pbtxt", ARTICLE)
    weights = packaged.packaged_model()
    assert weights is not None
    (path / "article" / "1").mkdir()
    (path / "article" / "1" / "model.gguf").symlink_to(weights)
    write(path / "chat" / "1" / "model.json", json.dumps({"model": packaged.NAME, "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}))
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RealServer]:
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-python-models=true", "--allow-grpc=false", "--allow-metrics=false")
    process = RealServer("--model-repository", str(repository), *flags, "--max-model-len", "512", "--kv-cache-memory-bytes", "64MiB")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def http(server: RealServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def infer(client: httpx.Client, model: str = "plain", tensor: str = "IN") -> httpx.Response:
    body = {"inputs": [{"name": tensor, "shape": [1, 1], "datatype": "FP32", "data": [5.0]}]}
    return client.post(f"/v2/models/{model}/infer", json=body)


def index(client: httpx.Client) -> dict[str, tuple[str, str]]:
    lines = client.post("/v2/repository/index").json()
    return {f"{line['name']}:{line.get('version', '')}": (line.get("state", ""), line.get("reason", "")) for line in lines}


def load(client: httpx.Client, model: str) -> httpx.Response:
    return client.post(f"/v2/repository/models/{model}/load")


def trivium(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "trivium", *words]
    return subprocess.run(line, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""}, timeout=60)


def test_everything_that_can_be_served_is_and_the_rest_says_why(http: httpx.Client) -> None:
    found = index(http)
    assert [found[f"{name}:1"][0] for name in ("plain", "swap", "ens", "article", "chat")] == ["READY"] * 5
    assert found["syntax:"][0] == "UNAVAILABLE" and found["syntax:"][1].startswith("syntax/config.pbtxt:1:17: ")
    assert found["crash:1"][0] == "UNAVAILABLE" and "boom" in found["crash:1"][1]
    assert infer(http).json()["outputs"][0]["data"] == [1.0]
    assert infer(http, "ens", "X").json()["outputs"][0]["name"] == "Y"


def test_the_articles_configuration_serves_as_it_stands(http: httpx.Client) -> None:
    body = {
        "inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["The capital of France is"]}],
        "parameters": {"temperature": 0},
    }
    answer = http.post("/v2/models/article/infer", json=body).json()
    assert answer["outputs"][0]["name"] == "output" and "Paris" in answer["outputs"][0]["data"][0]
    config = http.get("/v2/models/article/config").json()
    assert config["max_batch_size"] == 32 and config["dynamic_batching"]["preferred_batch_size"] == [4, 8, 16]


def test_language_models_answer_on_the_openai_routes_by_their_names(server: RealServer, http: httpx.Client) -> None:
    with server.openai() as client:
        assert sorted(model.id for model in client.models.list()) == ["article", "chat"]
        for model in ("article", "chat"):
            completion = client.completions.create(model=model, prompt="The capital of France is", max_tokens=5, temperature=0)
            assert "Paris" in completion.choices[0].text
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="plain", prompt="x")
    assert http.get("/v2/models/chat").json()["inputs"][0]["name"] == "text_input"


class Traffic:
    """Requests to one model, one after the other, from several threads, until the `with` ends. What came back is counted."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._stops = threading.Event()
        self.counts: Counter[object] = Counter()

    def __enter__(self) -> Traffic:
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._stops.is_set():
                response = infer(client, self._model)
                self.counts[response.json()["outputs"][0]["data"][0] if response.status_code == 200 else response.text] += 1


def test_versions_change_under_load_without_a_failed_request(server: RealServer, http: httpx.Client, repository: Path) -> None:
    with Traffic(server.url, "swap") as traffic:
        for version in (2, 3):
            time.sleep(0.2)
            write_version(repository, "swap", version)
            assert load(http, "swap").status_code == 200
            assert infer(http, "swap").json()["model_version"] == str(version)
        write_version(repository, "swap", 4, "raise RuntimeError('boom')\n")
        refused = load(http, "swap")
        assert refused.status_code == 400 and refused.json()["error"].startswith(
            "load failed for model 'swap': version 4 is at UNAVAILABLE state: Internal:"
        )
        write(repository / "swap" / "config.pbtxt", CONFIG + "instance_group [ { count: 2 } ]")
        (repository / "swap" / "4" / "model.py").unlink()
        (repository / "swap" / "4").rmdir()
        assert load(http, "swap").status_code == 200
        time.sleep(0.2)
    assert set(traffic.counts) == {1.0, 2.0, 3.0}
    assert http.get("/v2/models/swap/config").json()["instance_group"][0]["count"] == 2


def test_a_slow_load_holds_up_nobody(server: RealServer, http: httpx.Client, repository: Path) -> None:
    write(repository / "slow" / "config.pbtxt", CONFIG)
    write_version(repository, "slow", 1, MODEL_PY.replace("pass", "time.sleep(1.5)", 1))
    answers: list[httpx.Response] = []
    with httpx.Client(base_url=server.url, timeout=60) as other:
        loading = threading.Thread(target=lambda: answers.append(load(other, "slow")))
        loading.start()
        worst = 0.0
        while loading.is_alive():
            begin = time.monotonic()
            assert infer(http).status_code == 200
            worst = max(worst, time.monotonic() - begin)
        loading.join()
    assert answers[0].status_code == 200 and worst < 1.0


def test_unloading_and_loading_take_ensembles_with_them(http: httpx.Client) -> None:
    assert http.post("/v2/repository/models/plain/unload").status_code == 200
    assert infer(http).status_code == 404 and infer(http, "ens", "X").status_code == 404
    assert http.get("/v2/models/plain/ready").status_code == 400
    assert load(http, "plain").status_code == 200
    assert infer(http).status_code == 200 and infer(http, "ens", "X").status_code == 200


def test_a_language_model_can_be_unloaded_and_loaded(server: RealServer, http: httpx.Client) -> None:
    with server.openai() as client:
        assert http.post("/v2/repository/models/chat/unload").status_code == 200
        with pytest.raises(openai.APIStatusError):
            client.completions.create(model="chat", prompt="x")
        deadline = time.monotonic() + 30
        while index(http)["chat:1"][0] != "UNAVAILABLE":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [model.id for model in client.models.list()] == ["article"]
        assert load(http, "chat").status_code == 200
        assert client.completions.create(model="chat", prompt="x", max_tokens=2).choices[0].text


def test_the_command_line_shows_loads_and_unloads(server: RealServer, tmp_path: Path) -> None:
    listed = trivium("models", "list", "--url", server.url)
    assert listed.returncode == 0 and "plain" in listed.stdout and "syntax/config.pbtxt:1:17" in listed.stdout
    shown = json.loads(trivium("models", "show", "plain", "--url", server.url).stdout)
    assert shown["config"]["backend"] == "python" and shown["metadata"]["versions"] == ["1"]
    config = tmp_path / "config.pbtxt"
    config.write_text(CONFIG)
    (tmp_path / "model.py").write_text(MODEL_PY.replace("VERSION = 1.0", "VERSION = 7.0"))
    uploaded = trivium("models", "load", "sent", "--config", str(config), "--file", f"7/model.py={tmp_path / 'model.py'}", "--url", server.url)
    assert uploaded.returncode == 0, uploaded.stderr
    assert httpx.get(f"{server.url}/v2/models/sent").json()["versions"] == ["7"]
    assert trivium("models", "unload", "sent", "--url", server.url).returncode == 0
    missing = trivium("models", "load", "nowhere", "--url", server.url)
    assert missing.returncode == 1 and "failed to load 'nowhere'" in missing.stderr


def test_polling_serves_what_is_copied_in_and_needs_no_configuration(tmp_path: Path) -> None:
    flags = ("--model-control-mode", "poll", "--repository-poll-secs", "0.1", "--allow-python-models", "--no-allow-grpc", "--no-allow-metrics")
    process = RealServer("--model-repository", str(tmp_path), *flags)
    try:
        with httpx.Client(base_url=process.url, timeout=30) as client:
            bare = MODEL_PY + (
                "\n    @staticmethod\n    def auto_complete_config(config):\n"
                "        config.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [1]})\n"
                "        config.add_output({'name': 'OUT', 'data_type': 'TYPE_FP32', 'dims': [1]})\n"
                "        config.set_max_batch_size(4)\n        return config\n"
            )
            write_version(tmp_path, "bare", 1, bare)
            deadline = time.monotonic() + 20
            while client.get("/v2/models/bare/ready").status_code != 200:
                assert time.monotonic() < deadline, process.log()
                time.sleep(0.05)
            assert infer(client, "bare").json()["outputs"][0]["data"] == [1.0]
            assert load(client, "bare").status_code == 503
    finally:
        process.stop()

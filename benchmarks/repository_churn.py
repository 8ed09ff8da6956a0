"""A model repository changed under load: versions come and go, models are reloaded, loaded and unloaded, and no request may fail.

    .venv/bin/python benchmarks/repository_churn.py --minutes 10

Starts a server of its own on a repository in a temporary folder, measures what one model can do, then sends requests at half of that rate while
another thread changes the repository every `--pause` seconds. Prints requests, failures, latencies and the memory of the server and its processes
before and after.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from server_process import free_port, process_tree

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = float(args["model_version"])

    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", (array * 0 + self.version).astype(np.float32))]))
        return answers
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
dynamic_batching { }
instance_group [ { count: COUNT kind: KIND_CPU } ]
"""
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}]})


def write_version(repository: Path, model: str, version: int) -> None:
    """Complete at once: a folder that is renamed."""
    staging = repository / f".{model}-{version}"
    staging.mkdir(parents=True)
    (staging / "model.py").write_text(MODEL)
    (repository / model).mkdir(exist_ok=True)
    staging.rename(repository / model / str(version))


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: str = "") -> tuple[int, bytes]:
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        return response.status, response.read()


class Traffic:
    """Threads that send requests; with a `rate` (in all), each on its own schedule, else as fast as they can."""

    def __init__(self, port: int, *, threads: int, rate: float | None = None) -> None:
        self.results: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.latencies: list[float] = []
        self._stops = threading.Event()
        pause = threads / rate if rate else 0.0
        self._threads = [threading.Thread(target=self._run, args=(port, pause)) for _ in range(threads)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()

    def _run(self, port: int, pause: float) -> None:
        client = Client(port)
        due = time.monotonic()
        while not self._stops.is_set():
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))
            begin = time.monotonic()
            try:
                status, body = client.post("/v2/models/main/infer", BODY)
            except OSError as error:
                self.results[f"{type(error).__name__}: {error}"] += 1
                client = Client(port)
                continue
            self.latencies.append(time.monotonic() - begin)
            if status == 200:
                self.results["ok"] += 1
                self.versions[json.loads(body)["model_version"]] += 1
            else:
                self.results[f"{status} {body[:200]!r}"] += 1


class Churn:
    """Changes the repository, one step each time it is called; every step must succeed."""

    def __init__(self, repository: Path, client: Client) -> None:
        self._repository, self._client = repository, client
        self._version = 1
        self._steps = [self._new_version, self._remove_old, self._config, self._side_load, self._side_unload, self._reload]
        self.counts: Counter[str] = Counter()

    def __call__(self) -> None:
        step = self._steps[sum(self.counts.values()) % len(self._steps)]
        step()
        self.counts[step.__name__.strip("_")] += 1

    def _load(self, model: str) -> None:
        status, body = self._client.post(f"/v2/repository/models/{model}/load")
        assert status == 200, body

    def _new_version(self) -> None:
        self._version += 1
        write_version(self._repository, "main", self._version)
        self._load("main")

    def _remove_old(self) -> None:
        for version in (self._repository / "main").iterdir():
            if version.is_dir() and int(version.name) < self._version:
                shutil.rmtree(version)
        self._load("main")

    def _config(self) -> None:
        (self._repository / "main" / "config.pbtxt").write_text(CONFIG.replace("COUNT", str(1 + self._version % 2)))
        self._load("main")

    def _reload(self) -> None:
        os.utime(self._repository / "main" / str(self._version) / "model.py")
        self._load("main")

    def _side_load(self) -> None:
        self._load("side")

    def _side_unload(self) -> None:
        status, body = self._client.post("/v2/repository/models/side/unload")
        assert status == 200, body


def memory_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def memory_of(pid: int) -> str:
    """Server and children in MiB, and how many children there are."""
    children = process_tree(pid)[1:]
    return f"server {memory_mib(pid):.1f} MiB, {len(children)} children {sum(map(memory_mib, children)):.1f} MiB"


def start(repository: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    flags = ["--model-control-mode", "explicit", "--load-model", "*", "--allow-python-models", "--no-allow-grpc", "--no-allow-metrics"]
    line = [sys.executable, "-m", "trivium", "serve", "--model-repository", str(repository), "--port", str(port), *flags]
    log = (repository.parent / "server.log").open("wb")
    process = subprocess.Popen([*line, "--uvicorn-log-level", "warning"], stdout=subprocess.DEVNULL, stderr=log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Client(port).post("/v2/models/main/infer", BODY)[0] == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.1)
    process.kill()
    raise SystemExit((repository.parent / "server.log").read_text())


def show(name: str, traffic: Traffic, seconds: float) -> None:
    ordered = sorted(traffic.latencies)
    total = sum(traffic.results.values())
    percentiles = ", ".join(f"p{p} {ordered[min(len(ordered) - 1, len(ordered) * p // 100)] * 1000:.2f} ms" for p in (50, 99))
    mean = statistics.fmean(ordered) * 1000
    print(f"{name}: {total} requests, {total / seconds:.0f}/s, {percentiles}, mean {mean:.2f} ms, results {dict(traffic.results)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between changes")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        for model in ("main", "side"):
            write_version(repository, model, 1)
            (repository / model / "config.pbtxt").write_text(CONFIG.replace("COUNT", "1"))
        process, port = start(repository)
        try:
            with Traffic(port, threads=arguments.threads) as full:
                time.sleep(5)
            show("alone, as fast as it goes", full, 5)
            rate = sum(full.results.values()) / 5 / 2
            churn = Churn(repository, Client(port))
            for _ in range(12):
                churn()
            time.sleep(1)
            print("memory before:", memory_of(process.pid))
            begin = time.monotonic()
            with Traffic(port, threads=arguments.threads, rate=rate) as traffic:
                while time.monotonic() - begin < arguments.minutes * 60:
                    churn()
                    time.sleep(arguments.pause)
            seconds = time.monotonic() - begin
            time.sleep(1)
            show(f"under change, {rate:.0f}/s", traffic, seconds)
            print("changes:", dict(churn.counts), "versions answered:", len(traffic.versions))
            print("memory after:", memory_of(process.pid))
            print("failed requests:", sum(traffic.results.values()) - traffic.results["ok"])
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    main()

"""The perf_analyzer binary against one or several KServe servers, in turn: the same load on each, round by round.

    python benchmarks/kserve_perf.py --perf-analyzer pa.sh --server trivium=127.0.0.1:8000:8001 --server triton=127.0.0.1:18000:18001 \
        --model identity --model fixed2ms_dyn --concurrency 1,8,32 --rounds 3

Each line is the best of the rounds: inferences per second (concurrency / mean latency: with `--request-count`, perf_analyzer rounds its own
figure to whole seconds), mean, p50 and p99 in microseconds, and the mean batch. What perf_analyzer counted must be what the server's
statistics counted: a difference ends the run with exit code 1. `--request-rate` uses its open-loop mode instead of a concurrency.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

WARMUP_REQUESTS = 200
TIMEOUT_S = 30


@dataclass(frozen=True)
class Server:
    name: str
    host: str
    http_port: int
    grpc_port: int

    def address(self, protocol: str) -> str:
        return f"{self.host}:{self.http_port if protocol == 'http' else self.grpc_port}"

    def counts(self, model: str) -> tuple[int, int]:
        """Requests that succeeded and executions, of all versions."""
        with urllib.request.urlopen(f"http://{self.host}:{self.http_port}/v2/models/{model}/stats", timeout=30) as answer:
            stats = json.load(answer)["model_stats"]
        return sum(one["inference_stats"]["success"]["count"] for one in stats), sum(one["execution_count"] for one in stats)


@dataclass(frozen=True)
class Figures:
    mean_us: float
    p50_us: float
    p99_us: float
    num_requests: int
    num_executions: int


def parse_server(text: str) -> Server:
    name, _, address = text.partition("=")
    host, http_port, grpc_port = address.split(":")
    return Server(name, host, int(http_port), int(grpc_port))


def measure(binary: Path, server: Server, model: str, protocol: str, load: list[str], num_requests: int) -> Figures:
    """Tried again when it hangs, as perf_analyzer 2.51 sometimes does with `--request-count` although all has been answered."""
    for _ in range(3):
        before = server.counts(model)
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            command = [str(binary), "-m", model, "-u", server.address(protocol), "-i", protocol, "-b", "1", *load, "-f", file.name]
            command += ["--request-count", str(num_requests), "--warmup-request-count", str(WARMUP_REQUESTS), "--measurement-interval", "60000"]
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                print(f"{server.name}: perf_analyzer hung", file=sys.stderr)
                continue
            if result.returncode:
                raise SystemExit(f"{server.name}: perf_analyzer failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
            row = next(csv.DictReader(Path(file.name).read_text().splitlines()))
        after = server.counts(model)
        mean_us = next(float(line.split()[2]) for line in result.stdout.splitlines() if "Avg latency:" in line)
        return Figures(mean_us, float(row["p50 latency"]), float(row["p99 latency"]), after[0] - before[0], after[1] - before[1])
    raise SystemExit(f"{server.name}: perf_analyzer hung three times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf-analyzer", type=Path, required=True)
    parser.add_argument("--server", type=parse_server, action="append", required=True, help="NAME=HOST:HTTP_PORT:GRPC_PORT")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--protocol", action="append", choices=("http", "grpc"))
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--request-rate", type=float, help="requests per second, instead of a concurrency")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    is_exact = True
    for model in options.model:
        for protocol in options.protocol or ("http", "grpc"):
            for concurrency in [1] if options.request_rate else map(int, options.concurrency.split(",")):
                rate = options.request_rate
                load = ["--request-rate-range", str(rate)] if rate else ["--concurrency-range", f"{concurrency}:{concurrency}"]
                found: dict[str, list[Figures]] = {}
                for _ in range(options.rounds):
                    for server in options.server:
                        found.setdefault(server.name, []).append(measure(options.perf_analyzer, server, model, protocol, load, options.requests))
                for name, figures in found.items():
                    best = min(figures, key=lambda one: one.mean_us)
                    throughput = rate or concurrency * 1e6 / best.mean_us
                    batch = best.num_requests / max(1, best.num_executions)
                    exact = all(one.num_requests == options.requests + WARMUP_REQUESTS for one in figures)
                    is_exact &= exact
                    how = f"rate={rate:g}" if rate else f"c={concurrency}"
                    print(
                        f"{model:16} {protocol:4} {how:8} {name:10} {throughput:8.0f}/s mean {best.mean_us:7.0f} "
                        f"p50 {best.p50_us:7.0f} p99 {best.p99_us:7.0f} us  batch {batch:5.1f}{'' if exact else '  COUNTS DIFFER'}",
                        flush=True,
                    )
    return 0 if is_exact else 1


if __name__ == "__main__":
    sys.exit(main())

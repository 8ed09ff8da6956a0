"""Served over HTTP on one GPU: Trivium beside another OpenAI server, dummy weights, closed loop, one load generator.

    python benchmarks/gpu_serving.py --shape llama-8b
    python benchmarks/gpu_serving.py --peer 'python3 -m vllm.entrypoints.openai.api_server --model {model} --port {port} --load-format dummy \\
        --dtype bfloat16 --max-model-len 4096 --no-enable-prefix-caching'

Each server runs alone, one after the other. Prints start-up, throughput, median TTFT and TPOT, p99 inter-token latency, then the ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from server_process import Server
from serving_load import Load, measure
from speed_model import SHAPES, make_speed_model

OURS = (
    f"{sys.executable} -m trivium serve {{model}} --port {{port}} --load-format dummy --dtype bfloat16 --max-model-len 4096 "
    "--no-enable-prefix-caching --uvicorn-log-level warning"
)


def measure_server(name: str, command: str, model: str, args: argparse.Namespace) -> dict[str, Any]:
    server = Server(command, model, Path(tempfile.gettempdir()) / f"gpu_serving_{name}.log")
    try:
        load = Load(server.url, server.models()[0], args.input_len, args.output_len, 120_000, args.temperature)
        early = measure(load, [10, 10], rounds=10, num_warmups=0) if args.first else []
        summaries = measure(load, args.concurrency, rounds=args.rounds, num_warmups=4)
        burst = measure(load, [100, 10, 100], rounds=2, num_warmups=0) if args.burst else []
    finally:
        server.close()
    figures = {"engine": name, "start_up_s": round(server.start_up_s, 2), "load": [asdict(summary) for summary in summaries]}
    if early:
        figures["first_100_itl_p99"] = round(early[0].itl_p99 / early[1].itl_p99, 3)
    if burst:
        figures["burst"] = round(burst[2].out_tok_s / burst[0].out_tok_s, 4)
    print(json.dumps(figures), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    parser.add_argument("--command", default=OURS)
    parser.add_argument("--peer", help="command of another OpenAI server; {model} and {port} are filled in")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--first", action="store_true", help="also p99 between tokens of the first 100 requests, over that of the next 100")
    parser.add_argument("--burst", action="store_true", help="also concurrency 100 steady, then right after 10")
    parser.add_argument("--model", help="folder of the model; default: one is made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(make_speed_model(Path(folder), args.shape))
        ours = measure_server("trivium", args.command, model, args)
        theirs = measure_server("peer", args.peer, model, args) if args.peer else None
    keys = ("out_tok_s", "ttft_median", "tpot_median", "itl_p99")
    print(f"{'':16}" + "".join(f"{key:>14}" for key in keys) + ("".join(f"{'x ' + key:>16}" for key in keys) if theirs else ""))
    for index, row in enumerate(ours["load"]):
        line = f"concurrency {row['concurrency']:<4}" + "".join(f"{row[key]:14.2f}" for key in keys)
        if theirs:
            line += "".join(f"{row[key] / theirs['load'][index][key]:16.2f}" for key in keys)
        print(line)
    print(f"start-up: {ours['start_up_s']} s" + (f", peer {theirs['start_up_s']} s" if theirs else ""))


if __name__ == "__main__":
    main()

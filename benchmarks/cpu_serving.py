"""Trivium beside other engines on a CPU: one model folder, one machine, one load generator, in turn.

    python benchmarks/cpu_serving.py --model FOLDER
    python benchmarks/cpu_serving.py --model FOLDER --peer 'VENV/bin/vllm serve {model} --port {port} --dtype bfloat16' --transformers VENV/bin/python

`--peer` is the command of an OpenAI server; `{model}` and `{port}` are filled in. `--transformers` names a Python that has transformers, whose
`generate` is measured at the same batch sizes. Prints start-up, resident memory, idle CPU, throughput and latencies, then the ratios.
Nothing else may run on the machine: on two cores a browser is enough to spoil a figure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from server_process import Server, idle_share, resident_bytes
from serving_load import Load, Summary, measure

OURS = f"{sys.executable} -m trivium serve {{model}} --port {{port}} --uvicorn-log-level warning --max-model-len 2048"
GENERATE = """
import os, sys, time, torch
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
for batch in map(int, sys.argv[4:]):
    ids = torch.randint(100, 49000, (batch, int(sys.argv[2])))
    def run(tokens):
        begin = time.perf_counter()
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=2, max_new_tokens=tokens, min_new_tokens=tokens)
        return time.perf_counter() - begin
    run(2)
    print(batch, batch * int(sys.argv[3]) / run(int(sys.argv[3])), flush=True)
"""


def measure_server(name: str, command: str, args: argparse.Namespace) -> dict[str, Any]:
    server = Server(command, args.model, Path(tempfile.gettempdir()) / f"cpu_serving_{name}.log")
    try:
        load = Load(server.url, server.models()[0], args.input_len, args.output_len, args.vocab_size)
        rounds: list[list[Summary]] = [measure(load, args.concurrency, rounds=args.rounds) for _ in range(args.repeats)]
        best = [median_summary([one[index] for one in rounds]) for index in range(len(args.concurrency))]
        figures = {
            "engine": name,
            "start_up_s": round(server.start_up_s, 2),
            "resident_mib": round(resident_bytes(server.process.pid) / 2**20),
            "idle_cpu": round(idle_share(server.process.pid), 4),
            "load": [asdict(summary) for summary in best],
        }
    finally:
        server.close()
    print(json.dumps(figures), flush=True)
    return figures


def median_summary(runs: list[Summary]) -> Summary:
    return sorted(runs, key=lambda run: run.out_tok_s)[len(runs) // 2]


def measure_transformers(python: str, args: argparse.Namespace) -> dict[int, float]:
    command = [python, "-c", GENERATE, args.model, str(args.input_len), str(args.output_len), *map(str, args.concurrency)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = {int(batch): float(rate) for batch, rate in (line.split() for line in done.stdout.splitlines())}
    print(json.dumps({"engine": "transformers", "out_tok_s": found}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder in Hugging Face form")
    parser.add_argument("--command", default=OURS)
    parser.add_argument("--peer")
    parser.add_argument("--transformers", help="a Python with transformers and torch")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    ours = measure_server("trivium", args.command, args)
    theirs = measure_server("peer", args.peer, args) if args.peer else None
    generate = measure_transformers(args.transformers, args) if args.transformers else {}
    print(f"{'':14}{'out tok/s':>12}{'TTFT ms':>12}{'TPOT ms':>12}" + (f"{'x peer':>10}{'x TTFT':>10}{'x TPOT':>10}" if theirs else ""))
    for index, row in enumerate(ours["load"]):
        line = f"concurrency {row['concurrency']:<2}{row['out_tok_s']:12.1f}{row['ttft_median']:12.1f}{row['tpot_median']:12.2f}"
        if theirs:
            other = theirs["load"][index]
            line += "".join(f"{row[key] / other[key]:10.2f}" for key in ("out_tok_s", "ttft_median", "tpot_median"))
        print(line)
        if row["concurrency"] in generate:
            print(f"  over transformers' generate: {row['out_tok_s'] / generate[row['concurrency']]:.2f}")
    for key in ("start_up_s", "resident_mib", "idle_cpu"):
        print(f"{key}: {ours[key]}" + (f", peer {theirs[key]}" if theirs else ""))


if __name__ == "__main__":
    main()

"""Offline throughput of Trivium and of a peer with the same `LLM` interface, in one run: ratios, on dummy weights.

    python benchmarks/gpu_offline.py --shape llama-8b --peer vllm
    python benchmarks/gpu_offline.py --shape qwen2.5-0.5b --workloads 1x128/256 32x128/256

A workload is REQUESTSxIN/OUT: all requests at once, prompts of random ids, greedy, EOS ignored, prefix cache off. Median of three runs, one
run from 1,000 requests on. Each engine runs in a process of its own, one after the other. Prints one JSON line per measurement and a table last.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from speed_model import SHAPES, make_speed_model

DEFAULT_WORKLOADS = {
    "llama-8b": ["1x512/128", "32x512/256", "64x512/256", "256x512/256", "1000x512/256", "128x2048/128"],
    "qwen2.5-0.5b": ["1x128/256", "32x128/256", "256x128/256", "1000x128/128"],
}


def parse_workload(text: str) -> tuple[int, int, int]:
    requests, shape = text.split("x")
    length, out = shape.split("/")
    return int(requests), int(length), int(out)


def make_prompts(requests: int, length: int) -> list[dict[str, list[int]]]:
    source = random.Random(requests * 1000 + length)
    return [{"prompt_token_ids": [source.randrange(256, 120_000) for _ in range(length)]} for _ in range(requests)]


def measure(engine: str, model: str, workloads: list[str], args: argparse.Namespace) -> None:
    """Runs inside the engine's own process."""
    # An engine may import a package of the same name as a script beside this one (transformers looks for `kernels`).
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != Path(__file__).resolve().parent]
    module: Any = importlib.import_module(engine)
    begin = time.perf_counter()
    own = {"skip_tokenizer_init": True, **json.loads(args.ours)} if engine == "trivium" else {}
    llm = module.LLM(
        model=model,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=args.max_model_len,
        tensor_parallel_size=args.tensor_parallel_size,
        gpu_memory_utilization=0.9,
        enable_prefix_caching=False,
        **own,
    )

    def run(requests: int, length: int, out: int) -> float:
        params = module.SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True, detokenize=False)
        prompts = make_prompts(requests, length)
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - started
        assert all(len(output.outputs[0].token_ids) == out for output in outputs)
        return took

    run(1, 16, 1)
    print(json.dumps({"engine": engine, "workload": "start-up to first token", "s": round(time.perf_counter() - begin, 2)}), flush=True)
    run(8, 512, 16)
    for workload in workloads:
        requests, length, out = parse_workload(workload)
        times: list[float] = []
        while len(times) < (1 if requests >= 1000 else 3) and sum(times) < args.enough:
            times.append(run(requests, length, out))
        took = statistics.median(times)
        figures = {"engine": engine, "workload": workload, "s": round(took, 4), "out_tok_s": round(requests * out / took, 1), "runs": len(times)}
        print(json.dumps(figures), flush=True)


def compare(rows: list[dict[str, Any]], peer: str | None) -> None:
    ours = {row["workload"]: row for row in rows if row["engine"] == "trivium"}
    theirs = {row["workload"]: row for row in rows if row["engine"] == peer}
    print(f"{'workload':28}{'trivium s':>12}{'tok/s':>12}" + (f"{peer + ' s':>12}{'tok/s':>12}{'speed-up':>10}" if peer else ""))
    for workload, row in ours.items():
        line = f"{workload:28}{row['s']:12.3f}{row.get('out_tok_s', 0):12.1f}"
        other = theirs.get(workload)
        if other:
            line += f"{other['s']:12.3f}{other.get('out_tok_s', 0):12.1f}{other['s'] / row['s']:10.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    parser.add_argument("--workloads", nargs="*", help="REQUESTSxIN/OUT")
    parser.add_argument("--peer", help="import path of another engine with LLM and SamplingParams, e.g. vllm")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--enough", type=float, default=1e9, metavar="SECONDS", help="no further run of a workload after so many seconds")
    parser.add_argument("--ours", default="{}", metavar="JSON", help="engine arguments of ours alone, e.g. '{\"batch_invariant\": true}'")
    parser.add_argument("--model", help="folder of the model; default: one is made")
    parser.add_argument("--measure", metavar="ENGINE", help="only this engine, in this process, on --model")
    args = parser.parse_args()
    workloads = args.workloads or DEFAULT_WORKLOADS.get(args.shape, ["1x128/32", "8x128/32"])
    if args.measure:
        measure(args.measure, args.model, workloads, args)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or make_speed_model(Path(folder), args.shape)
        for engine in ["trivium", *([args.peer] if args.peer else [])]:
            command = [sys.executable, __file__, "--measure", engine, "--model", str(model), "--max-model-len", str(args.max_model_len)]
            command += ["--tensor-parallel-size", str(args.tensor_parallel_size), "--enough", str(args.enough), "--ours", args.ours]
            done = subprocess.run([*command, "--workloads", *workloads], stdout=subprocess.PIPE, text=True, check=False)
            for line in done.stdout.splitlines():
                if line.startswith("{"):
                    print(line, flush=True)
                    rows.append(json.loads(line))
    compare(rows, args.peer)


if __name__ == "__main__":
    main()

"""What `batch_invariant` costs: throughput with and without it, in turn on one machine, and whether it holds.

    python benchmarks/batch_invariance.py
    python benchmarks/batch_invariance.py --model FOLDER --concurrency 1 8 32 --input-len 128 --output-len 64

Two engines, alike but for the setting, are alive at the same time and take turns, so that a machine that slows down slows down both. Prints
a line per concurrency: medians of both, the ratio of throughputs (1.00: it costs nothing; the default is on from 0.95), and on a CPU the ratio
of processor seconds, which other work on the machine disturbs less. Then: how many of the requests got, bit for bit, the same tokens and
logprobs in a batch as alone, with it and without.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path

from trivium import LLM, SamplingParams
from trivium.errors import ConfigError
from trivium.outputs import RequestOutput

TICKS = os.sysconf("SC_CLK_TCK")


class Engine:
    """One `LLM`, and the figures of its turns."""

    def __init__(self, *, batch_invariant: bool, args: argparse.Namespace) -> None:
        lengths = args.input_len + args.output_len
        self.args = args
        self.llm = LLM(
            model=args.model,
            batch_invariant=batch_invariant,
            enable_prefix_caching=False,
            max_model_len=lengths,
            max_num_seqs=max(args.concurrency),
            gpu_memory_utilization=0.45,
        )
        self.pid = self.llm._client._process.pid
        self.notes = [note for note in self.llm._client.ready.notes if note.startswith("batch_invariant")]

    def run(self, concurrency: int, seed: int, *, logprobs: int | None = None) -> list[RequestOutput]:
        source = random.Random(seed)
        prompts = [[source.randrange(100, 40_000) for _ in range(self.args.input_len)] for _ in range(concurrency)]
        params = SamplingParams(temperature=0.0, max_tokens=self.args.output_len, ignore_eos=True, detokenize=False, logprobs=logprobs)
        return self.llm.generate(prompts, params, use_tqdm=False)

    def timed(self, concurrency: int, seed: int) -> tuple[float, float]:
        """(wall seconds, processor seconds of the engine process)."""
        begin, used = time.perf_counter(), processor_seconds(self.pid)
        self.run(concurrency, seed)
        return time.perf_counter() - begin, processor_seconds(self.pid) - used

    def num_identical(self, concurrency: int) -> int:
        """Requests of a batch that get the same alone."""
        batch = self.run(concurrency, 0, logprobs=3)
        alone: list[RequestOutput] = []
        for result in batch:
            params = SamplingParams(temperature=0.0, max_tokens=self.args.output_len, ignore_eos=True, detokenize=False, logprobs=3)
            alone += self.llm.generate({"prompt_token_ids": result.prompt_token_ids}, params, use_tqdm=False)
        return sum(one.outputs[0] == other.outputs[0] for one, other in zip(batch, alone, strict=True))


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="as `LLM` takes it; default: the packaged model")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    try:
        engines = {name: Engine(batch_invariant=name == "with", args=args) for name in ("with", "without")}
    except ConfigError as error:
        parser.exit(1, f"{error.message}\n")
    for name, engine in engines.items():
        print(f"{name}: {'; '.join(engine.notes)}")
    print(f"{'concurrency':>12}{'with tok/s':>14}{'without tok/s':>16}{'ratio':>8}{'processor s, ratio':>22}")
    for concurrency in args.concurrency:
        compare(engines, concurrency, args)
    for name, engine in engines.items():
        count = max(args.concurrency)
        print(f"{name}: {engine.num_identical(count)} of {count} requests are the same to the bit in a batch and alone")
        engine.llm.close()


def compare(engines: dict[str, Engine], concurrency: int, args: argparse.Namespace) -> None:
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for index in range(args.rounds + 1):
        for name in sorted(engines, reverse=bool(index % 2)):
            figures[name].append(engines[name].timed(concurrency, index))
    walls = {name: statistics.median(wall for wall, _ in own[1:]) for name, own in figures.items()}
    used = {name: statistics.median(processor for _, processor in own[1:]) for name, own in figures.items()}
    tokens = concurrency * args.output_len
    rates = {name: tokens / wall for name, wall in walls.items()}
    ratio, cost = rates["with"] / rates["without"], used["with"] / max(used["without"], 1e-9)
    print(f"{concurrency:12}{rates['with']:14.1f}{rates['without']:16.1f}{ratio:8.3f}{cost:22.3f}", flush=True)


if __name__ == "__main__":
    main()

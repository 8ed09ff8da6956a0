"""What an engine on a GPU keeps to beyond its throughput, on dummy weights; no peer is needed, each figure is a ratio of our own.

    python benchmarks/gpu_properties.py sampling prefix busy memory

sampling   throughput at temperature 0.7, top-p 0.95 over greedy throughput, 256 requests of 512/256 (`--requests`)
prefix     time to the first token of prompts of 4,096 shared and 128 own tokens: with the shared part cached over without
busy       union of the kernels' times over wall time in a profile of decode steps of 32 and 256 requests
memory     2,048 requests of 1,024/512 with as many KV blocks as Llama-3-8B has on an H200: blocks in use (the watermark counted as used) over
           blocks there are, and tokens missing in used blocks, while requests wait. The scheduler alone decides both: no device is used

Prints one JSON line per property.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from speed_model import make_speed_model

BLOCKS_OF_LLAMA_8B = 55_000


def build(model: str, **args: Any) -> Any:
    from trivium.config_io import build_engine_config
    from trivium.engine.build import build_engine

    config = build_engine_config(model=model, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, prompt_spread=1, **args)
    return build_engine(config, lambda _: None)


def run(engine: Any, prompts: list[list[int]], params: Any, out: int, on_step: Any = None) -> list[float]:
    """All prompts at once, one step in flight as in the engine's loop. Returns when each token arrived, in seconds from the start."""
    from trivium.protocol.messages import AddRequest

    scheduler, executor = engine.scheduler, engine.executor
    begin = time.perf_counter()
    for prompt in prompts:
        name = f"{begin}-{len(scheduler._requests)}"
        scheduler.add(AddRequest(request_id=name, prompt_token_ids=prompt, params=params, max_tokens=out))
    in_flight, arrivals = collections.deque(), []
    while scheduler.has_work:
        plan = scheduler.schedule()
        if plan is not None:
            in_flight.append(executor.submit(plan))
        if on_step is not None:
            on_step(scheduler)
        if in_flight and (plan is None or len(in_flight) > 1):
            outputs = scheduler.update(in_flight.popleft().result())
            arrivals += [time.perf_counter() - begin] * sum(len(output.token_ids) for output in outputs)
    assert len(arrivals) == len(prompts) * out
    return arrivals


def make_prompts(count: int, length: int, seed: int, shared: list[int] | None = None) -> list[list[int]]:
    source = random.Random(seed)
    return [[*(shared or []), *(source.randrange(256, 120_000) for _ in range(length))] for _ in range(count)]


def sampling(engine: Any, args: argparse.Namespace) -> dict[str, Any]:
    from trivium.types import SamplingParams

    kinds = {
        "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
        "sampled": SamplingParams(temperature=0.7, top_p=0.95, seed=1, ignore_eos=True),
    }
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(args.rounds):
        for index, (kind, params) in enumerate(kinds.items()):  # other prompts each time: nothing is cached
            prompts = make_prompts(args.requests, 512, 2 * turn + index)
            speeds[kind].append(args.requests * 256 / run(engine, prompts, params, 256)[-1])
    medians = {kind: round(statistics.median(found), 1) for kind, found in speeds.items()}
    return {**medians, "ratio": round(medians["sampled"] / medians["greedy"], 4)}


def prefix(engine: Any, args: argparse.Namespace) -> dict[str, Any]:
    from trivium.types import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True)
    cold, warm = [], []
    for seed in range(7):
        shared = make_prompts(1, 4096, 1000 + seed)[0]
        first, second = make_prompts(2, 128, seed, shared)
        cold.append(run(engine, [first], params, 1)[0])
        warm.append(run(engine, [second], params, 1)[0])
    before, after = statistics.median(cold[2:]), statistics.median(warm[2:])
    return {"cold_ms": round(before * 1e3, 2), "warm_ms": round(after * 1e3, 2), "ratio": round(after / before, 4)}


def busy(engine: Any, args: argparse.Namespace) -> dict[str, Any]:
    from gpu_profile import drive

    from trivium.types import SamplingParams

    params = SamplingParams(temperature=0.0, ignore_eos=True)
    return {f"busy_{count}": drive(engine, count, 512, 64, params, profile=True, label=f"{count}x512/64") for count in (32, 256)}


class Script:
    """An executor without a device: every sampled row gets the same token. What is computed makes no difference to who holds which blocks."""

    def submit(self, plan: Any) -> Any:
        from trivium.scheduling.step import StepResult

        return SimpleNamespace(result=lambda: StepResult(step_id=plan.step_id, token_ids=[5] * sum(plan.samples)))


def memory(_: Any, args: argparse.Namespace) -> dict[str, Any]:
    from trivium.scheduling.limits import SchedulerLimits
    from trivium.scheduling.scheduler import Scheduler
    from trivium.types import SamplingParams

    limits = SchedulerLimits(
        max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=4096, num_blocks=BLOCKS_OF_LLAMA_8B, enable_prefix_caching=False
    )
    used: list[float] = []
    waste: list[float] = []

    def look(scheduler: Any) -> None:
        if scheduler.waiting:
            in_use = scheduler.pool.num_usable - scheduler.pool.num_free
            used.append((in_use + limits.watermark_blocks) / scheduler.pool.num_usable)
            waste.append(1 - sum(request.num_computed for request in scheduler.running) / (in_use * limits.block_size))

    scheduler = Scheduler(limits)
    engine = SimpleNamespace(scheduler=scheduler, executor=Script())
    run(engine, make_prompts(2048, 1024, 1), SamplingParams(temperature=0.0, ignore_eos=True), 512, look)
    filled = slice(len(used) // 10, None)  # the first tenth of the steps fills the cache
    return {
        "blocks_in_use": round(statistics.mean(used[filled]), 4),
        "waste": round(statistics.mean(waste[filled]), 4),
        "steps": len(used),
        "preemptions": scheduler.stats().num_preemptions,
    }


WITH_ENGINE = {"sampling": sampling, "prefix": prefix, "busy": busy}
NAMES = [*WITH_ENGINE, "memory"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("properties", nargs="*", metavar="PROPERTY", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    engine: Any = None
    for name in args.properties or NAMES:
        if engine is None and name in WITH_ENGINE:
            with tempfile.TemporaryDirectory() as folder:
                engine = build(str(make_speed_model(Path(folder), "llama-8b")), max_model_len=8192, gpu_memory_utilization=0.9)
        measure = WITH_ENGINE.get(name, memory)
        print(json.dumps({"property": name, **measure(engine, args)}), flush=True)


if __name__ == "__main__":
    main()

"""Where a decode step's time goes: the engine in this process on dummy weights, wall time per step, host time by part, kernels, GPU busy.

    python benchmarks/gpu_profile.py --shape llama-8b --workloads 1x512/128 32x512/256 --profile

For each workload: all requests start at once; prefill steps are timed apart from pure decode steps, of which the middle ones are profiled:
"busy" is the union of the kernels' times over the wall time they span.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from gpu_offline import make_prompts, parse_workload
from speed_model import SHAPES, make_speed_model

PROFILED_STEPS = 12


def build(model: str, args: argparse.Namespace) -> Any:
    from trivium.config_io import build_engine_config
    from trivium.engine.build import build_engine

    engine_args: dict[str, Any] = json.loads(args.engine_args)
    config = build_engine_config(
        model=model, load_format="dummy", dtype="bfloat16", max_model_len=args.max_model_len, gpu_memory_utilization=0.9,
        enable_prefix_caching=False, skip_tokenizer_init=True, **engine_args,
    )  # fmt: skip
    return build_engine(config, lambda _: None)


class Clock:
    """Sums of host time by part of the loop."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = collections.defaultdict(list)

    def run(self, part: str, call: Any, *args: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args)
        self.parts[part].append(time.perf_counter() - begin)
        return result


def time_phases() -> None:
    """Prints how long each part of building the engine takes."""
    from trivium.engine import build as build_module
    from trivium.engine import rank
    from trivium.engine.graphs import DecodeGraphs

    def timed(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            import torch

            begin = time.perf_counter()
            result = call(*args, **kwargs)
            torch.cuda.synchronize()
            print(f"   phase {name}: {time.perf_counter() - begin:.2f} s", flush=True)
            return result

        setattr(owner, name, run)

    for name in ("detect_device", "build_model", "compile_kernels", "warm_prompts", "measure_workspace", "allocate_caches", "Sampler"):
        timed(rank, name)
    timed(DecodeGraphs, "capture_all")
    timed(build_module, "build_rank")


def drive(engine: Any, requests: int, length: int, out: int, params: Any, *, profile: bool, label: str, prefill_steps: int = 0) -> float:
    """One workload through scheduler and executor, one step in flight, as the engine's loop does it. Returns how busy a profile found the device."""
    import torch

    from trivium.protocol.messages import AddRequest

    scheduler, executor = engine.scheduler, engine.executor
    for index, prompt in enumerate(make_prompts(requests, length)):
        ids = [token % engine.ready.vocab_size for token in prompt["prompt_token_ids"]]
        scheduler.add(AddRequest(request_id=f"{label}-{index}", prompt_token_ids=ids, params=params, max_tokens=out))
    clock, in_flight, steps = Clock(), collections.deque(), []
    profiler: Any = None
    first_token = None
    num_decodes, busy = 0, 0.0
    begin = last = time.perf_counter()
    while scheduler.has_work:
        plan = clock.run("schedule", scheduler.schedule)
        if plan is not None:
            is_decode = not any(plan.num_fed)
            num_decodes += is_decode and len(plan.rows) == requests
            if prefill_steps and first_token is None and profiler is None:
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                profiler.__enter__()
            if profile and num_decodes == out // 2 and profiler is None:
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                torch.cuda.synchronize()
                profiler.__enter__()
            in_flight.append((clock.run("launch" if is_decode else "launch mixed", executor.submit, plan), is_decode, plan))
        if in_flight and (plan is None or len(in_flight) > 1):
            handle, is_decode, done = in_flight.popleft()
            result = clock.run("wait", handle.result)
            clock.run("update", scheduler.update, result)
            now = time.perf_counter()
            first_token = first_token or now
            steps.append((now - last, is_decode and len(done.rows) == requests, sum(done.num_tokens)))
            last = now
            if prefill_steps and profiler is not None and len(steps) == prefill_steps:
                torch.cuda.synchronize()
                profiler.__exit__(None, None, None)
                report(profiler, f"{label}, first {prefill_steps} steps", prefill_steps)
                profiler, prefill_steps = None, 0
            if profiler is not None and not prefill_steps and num_decodes >= out // 2 + PROFILED_STEPS:
                torch.cuda.synchronize()
                profiler.__exit__(None, None, None)
                busy = report(profiler, label, PROFILED_STEPS)
                profiler, profile = None, False
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    decode = [s for s, pure, _ in steps if pure]
    mixed = [(s, tokens) for s, pure, tokens in steps if not pure]
    print(f"== {label}: {took:.4f} s, {requests * out / took:.0f} tok/s out, first token {(first_token or begin) - begin:.4f} s")
    if decode:
        late = sorted(decode)[int(len(decode) * 0.99)]
        print(f"   {len(decode)} decode steps: median {statistics.median(decode) * 1e3:.3f} ms, p99 {late * 1e3:.3f} ms")
    others = max(sum(s for s, _ in mixed), 1e-9)
    print(f"   {len(mixed)} other steps: {others:.4f} s, {sum(tokens for _, tokens in mixed) / others:.0f} tokens/s")
    parts = (f"{part} {statistics.median(times) * 1e6:.0f} (sum {sum(times):.3f} s)" for part, times in clock.parts.items())
    print("   host, median us: " + ", ".join(parts), flush=True)
    return busy


def report(profiler: Any, label: str, num_steps: int) -> float:
    """Kernels by time, and the union of their times over the span of all; of decode steps whole ones only, without the first, which is late."""
    kernels = [e for e in profiler.events() if e.device_type.name == "CUDA" and e.time_range.elapsed_us() > 0]
    marks = sorted(e.time_range.start for e in kernels if "_decode_inputs_kernel" in e.name)
    if len(marks) > 3:
        kernels = [e for e in kernels if marks[1] <= e.time_range.start < marks[-1]]
        num_steps = len(marks) - 2
    by_name: dict[str, list[float]] = collections.defaultdict(list)
    spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
    for event in kernels:
        by_name[event.name].append(event.time_range.elapsed_us())
    busy, gaps, at = 0.0, [], spans[0][0]
    for start, end in spans:
        if start > at:
            gaps.append(start - at)
        busy += max(0.0, end - max(at, start))
        at = max(at, end)
    total = (marks[-1] if len(marks) > 3 else at) - spans[0][0]
    largest = ", ".join(f"{gap:.0f}" for gap in sorted(gaps)[-num_steps:][::-1])
    print(f"-- {label}: busy {busy / total:.4f} of {total / num_steps / 1e3:.3f} ms a step; {len(kernels) / num_steps:.0f} kernels a step; "
          f"largest gaps, us: {largest}")  # fmt: skip
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:16]:
        print(f"   {sum(times) / num_steps:9.1f} us a step {len(times) / num_steps:6.1f} x {statistics.median(times):8.2f} us  {name[:100]}")
    return round(busy / total, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    parser.add_argument("--workloads", nargs="+", default=["1x512/128", "32x512/256", "256x512/256"])
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--prefill-steps", type=int, default=0, help="profile as many first steps of each workload, too")
    parser.add_argument("--phases", action="store_true", help="time the parts of start-up")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.7, top-p 0.95")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--host-profile", action="store_true", help="Python functions by time over all launches of the first workload")
    parser.add_argument("--engine-args", default="{}", help="JSON")
    parser.add_argument("--set", nargs="*", default=[], metavar="MODULE.NAME=JSON", help="change module constants first")
    args = parser.parse_args()
    begin = time.perf_counter()
    for change in args.set:
        path, value = change.split("=", 1)
        module, name = path.rsplit(".", 1)
        target = importlib.import_module(module)
        assert hasattr(target, name), path
        setattr(target, name, json.loads(value))
    from trivium.types import SamplingParams

    if args.phases:
        print(f"   phase imports: {time.perf_counter() - begin:.2f} s")
        time_phases()
        print(f"   phase imports of the engine: {time.perf_counter() - begin:.2f} s")
    params = SamplingParams(temperature=0.7 if args.sampled else 0.0, top_p=0.95 if args.sampled else 1.0, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        engine = build(str(make_speed_model(Path(folder), args.shape)), args)
        memory = {part: size >> 20 for part, size in engine.ready.memory.items()}
        print(f"built in {time.perf_counter() - begin:.1f} s; MiB: {memory}, {engine.ready.num_blocks} blocks")
        drive(engine, 4, 64, 8, params, profile=False, label="warm-up")
        for workload in args.workloads:
            requests, length, out = parse_workload(workload)
            for turn in range(args.repeat):
                drive(engine, requests, length, out, params, profile=args.profile and turn == args.repeat - 1, label=f"{workload}#{turn}")
            if args.prefill_steps:
                drive(engine, requests, length, 4, params, profile=False, label=workload, prefill_steps=args.prefill_steps)
        if args.host_profile:
            import cProfile
            import pstats

            profiler = cProfile.Profile()
            submit = engine.executor.submit
            engine.executor.submit = lambda plan: profiler.runcall(submit, plan)
            requests, length, out = parse_workload(args.workloads[0])
            drive(engine, requests, length, out, params, profile=False, label="host profile")
            pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
    engine.executor.close()


if __name__ == "__main__":
    main()

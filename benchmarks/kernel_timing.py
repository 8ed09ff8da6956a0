"""Compiling many kernel variants at once, and timing them as they run in an engine: inside CUDA graphs, over inputs that rotate through memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trivium.ops.triton.launch import compile_ahead

Run = Callable[[int], Tensor]
"""Takes the number of the input set."""


@dataclass(slots=True)
class Case:
    """One shape: variants of our kernel, the figure to beat, and what the fastest possible version would move or compute."""

    label: str
    variants: dict[str, Run]
    expected: Callable[[], Tensor] | None
    """For input set 0, in higher precision."""
    reference: Run | None = None
    bytes: float = 0.0
    flops: float = 0.0
    rotations: int = 1
    tolerance: float = 1e-2


@dataclass(slots=True)
class Outcome:
    label: str
    best: str
    seconds: float
    reference_seconds: float | None
    error: float
    bytes: float
    flops: float
    all_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        rate = f"{self.bytes / self.seconds / 1e12:6.2f} TB/s" if self.bytes else f"{self.flops / self.seconds / 1e12:6.1f} TFLOP/s"
        versus = f"{self.reference_seconds * 1e6:9.1f} {self.reference_seconds / self.seconds:6.2f}x" if self.reference_seconds else " " * 17
        return f"{self.label:34s} {self.seconds * 1e6:9.1f} us {rate:>14s} {versus} err {self.error:.1e}  {self.best}"


def precompile(cases: list[Case]) -> float:
    begin = time.perf_counter()
    with compile_ahead():
        for case in cases:
            for run in case.variants.values():
                run(0)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def graph_seconds(run: Run, rotations: int, estimate: float, *, replays: int = 7) -> float:
    """Median time of one call among many in a captured graph."""
    run(0)
    torch.cuda.synchronize()
    calls = max(rotations, min(100, max(4, int(1.5e-3 / max(estimate, 1e-6)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % rotations)
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def relative_error(out: Tensor, expected: Tensor) -> float:
    """NaN where a value is missing or not finite: never below a tolerance."""
    if out.shape != expected.shape or not torch.isfinite(out.float()).all():
        return float("nan")
    return ((out.double() - expected.double()).norm() / expected.double().norm()).item()


def measure(case: Case) -> Outcome:
    estimate = max(case.bytes / 4e12, case.flops / 5e14)
    expected = case.expected() if case.expected else None
    outcome = Outcome(case.label, "none", float("inf"), None, float("nan"), case.bytes, case.flops)
    for name, run in case.variants.items():
        try:
            error = relative_error(run(0), expected) if expected is not None else 0.0
            if not error <= case.tolerance:
                outcome.failures[name] = f"error {error:.2e}"
                continue
            seconds = graph_seconds(run, case.rotations, estimate)
        except Exception as problem:  # a variant that needs too much shared memory must not end the sweep
            outcome.failures[name] = str(problem).splitlines()[0][:100]
            continue
        outcome.all_seconds[name] = seconds
        if seconds < outcome.seconds:
            outcome.best, outcome.seconds, outcome.error = name, seconds, error
    if case.reference is not None:
        outcome.reference_seconds = graph_seconds(case.reference, case.rotations, estimate)
    return outcome

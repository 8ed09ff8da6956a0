"""Every kernel of `trivium.ops.triton` at the shapes of Llama-3-8B and Qwen2.5-0.5B: checked, timed in several configurations, compared.

    python benchmarks/kernels.py                       # everything, a short table last
    python benchmarks/kernels.py --only decode,skinny --models 8b --json out.json
    python benchmarks/kernels.py --quick               # the default configurations only

Needs one GPU; asks no network and no weights. Times are of one call among many inside a CUDA graph, over inputs larger than the L2 cache.
The column after the rate is the time of torch's own way (cuBLAS, its attention, its fused or composed operators) and the ratio to ours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from kernel_cases import MODELS, SECTIONS, randn
from kernel_timing import Outcome, graph_seconds, measure, precompile


def ceilings() -> None:
    source = randn(1 << 30)
    target = torch.empty_like(source)
    seconds = graph_seconds(lambda i: target.copy_(source), 1, 1e-3)
    print(f"copy                               {2 * source.nbytes / seconds / 1e12:.2f} TB/s")
    a, b = randn(8192, 8192), randn(8192, 8192)
    seconds = graph_seconds(lambda i: a @ b, 1, 1.4e-3)
    print(f"bf16 8192^3                        {2 * 8192**3 / seconds / 1e12:.0f} TFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas: " + ", ".join(SECTIONS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="default configurations only")
    parser.add_argument("--json", type=Path, help="where all times go")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no further case is started")
    options = parser.parse_args()
    begin = time.perf_counter()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    ceilings()
    outcomes: list[Outcome] = []
    for section, model in itertools.product(options.only.split(","), options.models.split(",")):
        if time.perf_counter() - begin > options.budget:
            print(f"--- {section} {model}: left out, over the budget")
            continue
        cases = list(SECTIONS[section](model, MODELS[model], quick=options.quick))
        seconds = precompile(cases)
        print(f"--- {section} {model}: {len(cases)} cases, compiled in {seconds:.1f} s, at {time.perf_counter() - begin:.0f} s", flush=True)
        while cases:
            outcome = measure(cases.pop(0))
            outcomes.append(outcome)
            for name, reason in outcome.failures.items():
                print(f"    {outcome.label}: {name} left out: {reason}")
            if options.json:
                options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
        torch.cuda.empty_cache()
    print("\ncase                                    ours           rate   reference  ratio")
    for outcome in outcomes:
        print(outcome.line())
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()

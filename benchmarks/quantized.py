"""Products with quantized weights on a GPU, at the shapes of Llama-3-8B or 70B: ours in several configurations, beside cuBLAS on bf16 weights.

    python benchmarks/quantized.py                                   # every format, rows from 1 to 512
    python benchmarks/quantized.py --formats int4,fp8 --rows 1,32 --quick
    python benchmarks/quantized.py --write-models /tmp/models        # config-only folders of quantized models, for dummy weights:
    python benchmarks/gpu_offline.py … /tmp/models/llama-8b-awq …    #   whole models

Times are of one call among many in a CUDA graph, over weights that rotate through more memory than the L2 cache holds. The last column is
cuBLAS's time and what ours gains on it; the sum over a layer's four products, times the layers, is a decode step's share.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from kernel_timing import Case, Run, measure, precompile
from speed_model import SHAPES, make_speed_model

from trivium.ops.triton import quantized_product as grouped
from trivium.ops.triton import rounded_product as rounded
from trivium.ops.triton.quantized import TritonQuantized
from trivium.ops.triton.quantized_product import ProductConfig
from trivium.weights.quantize import quantize_fp8, quantize_int4, quantize_int8, quantize_table4
from trivium.weights.quantized import QuantizedWeight, arrange

LAYERS = {
    "8b": (32, {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}),
    "70b": (80, {"qkv": (10240, 8192), "output": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}),
}


def _asymmetric(weight: Tensor) -> QuantizedWeight:
    made = quantize_int4(weight, 128)
    return replace(made, zeros=torch.randint(6, 10, made.scales.shape, device=weight.device).float())


def _act_order(weight: Tensor) -> QuantizedWeight:
    made = quantize_int4(weight, 128)
    return replace(made, groups=made.groups[torch.randperm(len(made.groups), device=weight.device)])


FORMATS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "awq": _asymmetric,
    "int4": lambda weight: quantize_int4(weight, 128),
    "act-order": _act_order,
    "nf4": lambda weight: quantize_table4(weight, "nf4"),
    "int8": quantize_int8,
    "w8a8": lambda weight: quantize_int8(weight, rounds_inputs=True),
    "fp8": quantize_fp8,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "gptq-act-order": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "fp8": {"quant_method": "fbgemm_fp8"},
}


def configs(num_rows: int, *, quick: bool) -> Iterator[ProductConfig | None]:
    yield None
    if quick:
        return
    least = max(16, 1 << (num_rows - 1).bit_length())
    for block_m in sorted({min(64, least), min(128, least), min(256, least)}):
        for block_n, num_warps in ((64, 4), (128, 4), (128, 8)) if block_m <= 128 else ((64, 8), (128, 8)):
            for stages in (2, 3, 5):
                for programs in (1, 2, 4):
                    yield ProductConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=stages, programs_per_sm=programs)


def cases(label: str, kind: str, n: int, k: int, num_rows: int, *, quick: bool) -> Case:
    rotations = max(1, min(16, (256 << 20) // (n * k)))
    plain = [torch.randn(n, k, dtype=torch.bfloat16, device="cuda") * k**-0.5 for _ in range(rotations)]
    packed = [TritonQuantized(arrange(FORMATS[kind](weight))) for weight in plain]
    x = torch.randn(num_rows, k, dtype=torch.bfloat16, device="cuda")
    variants: dict[str, Run] = {"as served": lambda i: packed[i](x, None)}
    for config in configs(num_rows, quick=quick):
        if config is None:
            continue
        function = rounded.rounded_product if packed[0].rounds_inputs else grouped.product
        variants[f"{config}"] = partial(_run, function, packed, x, config)
    if not packed[0].rounds_inputs and not quick:
        variants["dequantize, cuBLAS"] = lambda i: functional.linear(x, grouped.dequantize(packed[i].codes, x.dtype))
    return Case(
        label=f"{label} {kind} {n}x{k} M={num_rows}",
        variants=variants,
        expected=lambda: packed[0](x, None) if packed[0].rounds_inputs else x.double() @ FORMATS[kind](plain[0]).dequantize(torch.float64).T,
        reference=lambda i: functional.linear(x, plain[i]),
        bytes=packed[0].nbytes + 2.0 * num_rows * (n + k),
        flops=2.0 * num_rows * n * k,
        rotations=rotations,
        tolerance=2e-2,
    )


def _run(function: Callable[..., Tensor], packed: list[TritonQuantized], x: Tensor, config: ProductConfig, i: int) -> Tensor:
    return function(x, packed[i].codes, None, config=config)


def write_models(folder: Path) -> None:
    for shape in ("llama-8b", "llama-70b"):
        for name, section in SECTIONS.items():
            target = folder / f"{shape}-{name}"
            made = make_speed_model(folder, shape)
            target.mkdir(exist_ok=True)
            for file in made.iterdir():
                (target / file.name).write_bytes(file.read_bytes())
            (target / "config.json").write_text(json.dumps({**SHAPES[shape], "quantization_config": section}, indent=2))
            print(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--model", choices=list(LAYERS), default="8b")
    parser.add_argument("--rows", default="1,8,32,64,128,256,512")
    parser.add_argument("--quick", action="store_true", help="default configurations only")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no further case is started")
    parser.add_argument("--write-models", type=Path)
    options = parser.parse_args()
    if options.write_models:
        write_models(options.write_models)
        return
    begin = time.perf_counter()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    num_layers, shapes = LAYERS[options.model]
    for kind in options.formats.split(","):
        for num_rows in map(int, options.rows.split(",")):
            if time.perf_counter() - begin > options.budget:
                print(f"--- {kind} M={num_rows}: left out, over the budget")
                continue
            ours = theirs = 0.0
            for label, (n, k) in shapes.items():
                case = cases(label, kind, n, k, num_rows, quick=options.quick)
                precompile([case])
                outcome = measure(case)
                print(outcome.line(), flush=True)
                for name, problem in outcome.failures.items():
                    print(f"    {name}: {problem}")
                ours += outcome.seconds
                theirs += outcome.reference_seconds or 0.0
            ours, theirs = 1e3 * num_layers * ours, 1e3 * num_layers * theirs
            print(f"=== {kind} M={num_rows}: {ours:.2f} ms a step, bf16 {theirs:.2f} ms, {theirs / ours:.2f}x\n", flush=True)


if __name__ == "__main__":
    main()

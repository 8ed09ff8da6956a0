"""Products with quantized weights in CUDA graphs: every format, replayed on new inputs, from one row to more than the fused kernels take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trivium.ops.triton.quantized import TritonQuantized
from trivium.weights.quantize import quantize_fp8, quantize_int4, quantize_int8, quantize_table4
from trivium.weights.quantized import QuantizedWeight, arrange

N, K = 1536, 1024


FORMATS = ("int4", "whole zero points", "odd zero points", "act order", "nf4", "fp4", "int8", "w8a8", "fp8")


def made(name: str) -> QuantizedWeight:
    weight = torch.randn(N, K, device="cuda") * K**-0.5
    if name in ("nf4", "fp4"):
        return quantize_table4(weight, name)
    if name == "fp8":
        return quantize_fp8(weight)
    if name in ("int8", "w8a8"):
        return quantize_int8(weight, rounds_inputs=name == "w8a8")
    plain = quantize_int4(weight, 128)
    zeros = {
        "whole zero points": torch.randint(6, 11, plain.scales.shape, device="cuda").float(),
        "odd zero points": 8 + torch.rand(plain.scales.shape, device="cuda"),
    }
    groups = plain.groups[torch.randperm(K, device="cuda")] if name == "act order" else plain.groups
    return replace(plain, zeros=zeros.get(name), groups=groups)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("m", [1, 2, 16, 33, 64, 128, 200, 512, 700])
def test_replays_compute_what_the_dequantized_weight_does(name: str, m: int) -> None:
    torch.manual_seed(0)
    quantized = made(name)
    packed, dense = TritonQuantized(arrange(quantized)), quantized.dequantize(torch.float64)
    x = torch.randn(m, K, device="cuda", dtype=torch.bfloat16)
    packed(x, None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = packed(x, None)
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(m, K, device="cuda"))
        graph.replay()
        expected = x.double() @ dense.T
        error = (out.double() - expected).norm() / expected.norm()
        # float8's three bits of inputs cost more than int8's.
        assert error < (0.04 if name == "fp8" else 0.015), f"{error:.4f}"

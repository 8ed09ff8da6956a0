"""Products of the CPU kernels for quantized weights: every kind against float64, and rows that don't know of each other."""

from __future__ import annotations

import pytest
import torch

from trivium.ops.cpu.quantized import CPUQuantized
from trivium.ops.dispatch import load_fast_paths
from trivium.ops.quantized import QuantizedReference, pack_quantized
from trivium.weights.quantized import QuantizedWeight, arrange, even_groups

pytestmark = pytest.mark.skipif("pack_quantized" not in load_fast_paths("cpu"), reason="the CPU kernels are not built")

SHAPES = [(64, 128, 128), (50, 200, 64), (33, 100, 100), (96, 96, 24), (96, 1024, 1024), (40, 96, 32), (1, 16, 16), (65, 400, 200)]  # n, k, group
KINDS = [("int4", False), ("int4", True), ("int8", False), ("int8", True), ("table4", False), ("fp8", False)]


def made(kind: str, n: int, k: int, group: int, *, zeros: bool, shuffled: bool = False) -> QuantizedWeight:
    torch.manual_seed(n * k)
    count, top = -(-k // group), 16 if kind in ("int4", "table4") else 256
    codes = torch.randint(0, top, (n, k), dtype=torch.uint8)
    if kind == "fp8":
        codes = (torch.randn(n, k) * 10).to(torch.float8_e4m3fn).view(torch.uint8)
        codes[:, :8] = torch.arange(8, dtype=torch.uint8)  # the smallest numbers, below the normal ones
    groups = even_groups(k, group)
    return QuantizedWeight(
        kind,  # type: ignore[arg-type]
        codes,
        torch.rand(n, count) * 0.1 + 0.01,
        groups[torch.randperm(k)] if shuffled else groups,
        zeros=torch.rand(n, count) * top if zeros else None,
        table=torch.randn(16).bfloat16().float() if kind == "table4" else None,
    )


@pytest.mark.parametrize(("kind", "zeros"), KINDS)
@pytest.mark.parametrize(("n", "k", "group"), SHAPES)
@pytest.mark.parametrize("shuffled", [False, True])
def test_products_are_those_of_the_dequantized_weight(kind: str, zeros: bool, n: int, k: int, group: int, shuffled: bool) -> None:
    weight = made(kind, n, k, group, zeros=zeros, shuffled=shuffled)
    dense, bias = weight.dequantize(torch.float64), torch.randn(n)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 6e-3), (torch.float16, 1.5e-3)):
        packed = pack_quantized(weight, dtype)
        assert isinstance(packed, CPUQuantized)
        x = torch.randn(5, k).to(dtype)
        expected = x.double() @ dense.T
        for product, wanted in ((packed(x, None), expected), (packed(x, bias), expected + bias), (packed.wide(x), expected)):
            assert (product.double() - wanted).norm() <= tolerance * wanted.norm()
        reference = QuantizedReference(arrange(weight))(x.float(), None)
        assert (reference.double() - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(("kind", "zeros"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_whatever_rows_come_with_it(kind: str, zeros: bool, dtype: torch.dtype) -> None:
    """Across the boundaries of all ways of the kernel: few rows, blocks of rows, several passes; one and two threads."""
    packed = pack_quantized(made(kind, 160, 256, 32 if zeros else 256, zeros=zeros), dtype)
    x = torch.randn(101, 256).to(dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([packed(x[index : index + 1], None) for index in range(101)])
        for count in (2, 3, 4, 5, 12, 13, 48, 49, 101):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                assert torch.equal(packed(x[:count], None), alone[:count]), (count, threads)
                assert torch.equal(packed(x[-count:], None), alone[-count:]), (count, threads)
    finally:
        torch.set_num_threads(before)


def test_memory_is_what_the_codes_take() -> None:
    packed = pack_quantized(made("int4", 64, 1024, 128, zeros=False), torch.bfloat16)
    assert packed.nbytes == 64 * 1024 // 2 + 64 * 8 * 4

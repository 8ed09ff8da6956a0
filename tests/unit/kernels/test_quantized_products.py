"""Products with quantized weights against the dequantized weight in float64: kinds, groups, odd shapes, orders, split sums."""

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, DTYPE, ON_GPU, assert_close, randn
from torch import Tensor

from trivium.ops.triton import quantized as packing
from trivium.ops.triton.quantized import TritonQuantized
from trivium.ops.triton.quantized_product import ProductConfig, dequantize, product
from trivium.ops.triton.rounded_product import round_rows
from trivium.weights.quantize import quantize_fp8, quantize_int8
from trivium.weights.quantized import QuantizedWeight, arrange, even_groups

TOLERANCE = 1e-2 if ON_GPU else 1e-5


def weight(kind: str, n: int, k: int, group: int, *, zeros: bool = False, shuffled: bool = False) -> QuantizedWeight:
    torch.manual_seed(n + k)
    top = 16 if kind in ("int4", "table4") else 256
    codes = torch.randint(0, top, (n, k), dtype=torch.uint8)
    if kind == "fp8":
        codes = (torch.randn(n, k) * 20).to(torch.float8_e4m3fn).view(torch.uint8)
    groups = even_groups(k, group)
    if shuffled:
        groups = groups[torch.randperm(k)]
    count = int(groups.max()) + 1
    table = torch.randn(16).bfloat16().float() if kind == "table4" else None
    own_zeros = torch.randint(0, top, (n, count)).float() if zeros else None
    scales = torch.rand(n, count) / 10 + 0.01
    made = QuantizedWeight(kind, codes, scales, groups, zeros=own_zeros, table=table)
    return QuantizedWeight(**{name: value.to(DEVICE) if isinstance(value, Tensor) else value for name, value in vars(made).items()})


def expected(x: Tensor, quantized: QuantizedWeight) -> Tensor:
    return x.double() @ quantized.dequantize(torch.float64).T


CASES = [
    ("int4", 80, 256, 128, False, False),
    ("int4", 33, 192, 64, True, False),
    ("int4", 40, 96, 32, True, True),
    ("int4", 17, 100, 100, False, False),
    ("int4", 16, 90, 48, True, False),
    ("table4", 20, 128, 64, False, False),
    ("int8", 50, 128, 128, False, False),
    ("int8", 19, 96, 16, True, False),
    ("int8", 19, 100, 100, False, True),
    ("fp8", 34, 128, 128, False, False),
    ("fp8", 20, 256, 128, False, False),
]


@pytest.mark.parametrize(("kind", "n", "k", "group", "zeros", "shuffled"), CASES)
@pytest.mark.parametrize("m", [1, 5, 19])
def test_products_are_those_of_the_dequantized_weight(kind: str, n: int, k: int, group: int, zeros: bool, shuffled: bool, m: int) -> None:
    quantized = weight(kind, n, k, group, zeros=zeros, shuffled=shuffled)
    packed, x, bias = TritonQuantized(arrange(quantized)), randn(m, k), randn(n)
    assert_close(packed(x, None), expected(x, quantized), TOLERANCE)
    assert_close(packed(x, bias), expected(x, quantized) + bias.double(), TOLERANCE)
    wide = packed.wide(x)
    assert wide.dtype == torch.float32
    assert_close(wide, expected(x, quantized), TOLERANCE)


@pytest.mark.parametrize("config", [ProductConfig(block_n=16, programs_per_sm=8), ProductConfig(block_m=32, block_n=32, programs_per_sm=1)])
def test_parts_of_a_split_sum_add_up_every_time(config: ProductConfig) -> None:
    quantized = weight("int4", 24, 1024, 128, zeros=True)
    packed, x = TritonQuantized(arrange(quantized)), randn(3, 1024)
    results = [product(x, packed.codes, None, config=config) for _ in range(3)]
    assert_close(results[0], expected(x, quantized), TOLERANCE)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize(("kind", "n", "k", "group", "zeros", "shuffled"), [case for case in CASES if not case[-1]])
def test_the_whole_weight_can_be_dequantized(kind: str, n: int, k: int, group: int, zeros: bool, shuffled: bool) -> None:
    quantized = weight(kind, n, k, group, zeros=zeros, shuffled=shuffled)
    assert_close(dequantize(TritonQuantized(arrange(quantized)).codes, torch.float32)[:, :k], quantized.dequantize(torch.float64), 1e-6)


def test_float8_as_bits_where_the_device_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_has_float8", lambda device: False)
    quantized = weight("fp8", 34, 128, 128)
    codes = quantized.codes.clone()
    codes[:, :16] = torch.arange(16, dtype=torch.uint8)  # numbers below the smallest normal one
    quantized = QuantizedWeight("fp8", codes, quantized.scales, quantized.groups, inputs="fp8")
    packed, x = TritonQuantized(arrange(quantized)), randn(5, 128)
    assert packed.codes.kind == "fp8_bits" and not packed.rounds_inputs
    assert_close(packed(x, None), expected(x, quantized), TOLERANCE)
    assert_close(dequantize(packed.codes, torch.float32), quantized.dequantize(torch.float64), 1e-6)


def test_many_rows_take_the_dequantized_weight() -> None:
    quantized = weight("int4", 16, 128, 32, shuffled=True)
    x = randn(513, 128)
    assert_close(TritonQuantized(arrange(quantized))(x, None), expected(x, quantized), TOLERANCE)


@pytest.mark.parametrize("m", [1, 7, 70])
def test_int8_inputs_are_rounded_by_row(m: int) -> None:
    quantized = quantize_int8(randn(40, 96, dtype=torch.float32), rounds_inputs=True)
    packed, x = TritonQuantized(arrange(quantized)), randn(m, 96)
    assert packed.rounds_inputs
    step = x.float().abs().amax(dim=1, keepdim=True) / 127
    assert_close(packed(x, None), expected((x.float() / step).round() * step, quantized), TOLERANCE)


@pytest.mark.parametrize("group", [96, 32])
def test_float8_inputs_are_rounded_by_row_and_group(group: int) -> None:
    quantized = quantize_fp8(randn(40, 96, dtype=torch.float32))
    if group != 96:
        scales = torch.rand(40, 3, device=DEVICE) + 0.5
        quantized = QuantizedWeight("fp8", quantized.codes, scales, even_groups(96, group, DEVICE), inputs="fp8")
    packed, x = TritonQuantized(arrange(quantized)), randn(5, 96)
    rounded, steps = round_rows(x, torch.float8_e4m3fn, group, 96 // group)
    blocks = x.float().unflatten(1, (-1, group))
    assert_close(steps, blocks.abs().amax(dim=2) / 448, 1e-6)
    inputs = (rounded.float().unflatten(1, (-1, group)) * steps.unsqueeze(2)).flatten(1)
    if ON_GPU:  # the interpreter rounds float8 otherwise
        assert ((inputs - x.float()).abs() <= x.float().abs() / 16 + steps.max() / 512).all()
    assert_close(packed(x, None), expected(inputs, quantized), TOLERANCE)


def test_rows_of_zeros_stay_zeros() -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        rounded, scales = round_rows(torch.zeros(2, 64, dtype=DTYPE, device=DEVICE), dtype, 64, 1)
        assert not rounded.float().any() and bool(torch.isfinite(scales).all())

"""Packed weights against torch's product in double precision."""

from __future__ import annotations

import pytest
import torch

from trivium.ops.cpu import library
from trivium.ops.cpu.linear import PackedLinear, try_pack, try_pack_int8

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")
DTYPES = [torch.float32, torch.bfloat16]


def make(rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, num_in).to(dtype), torch.randn(num_out, num_in).to(dtype), torch.randn(num_out).to(dtype)


def assert_near(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, num_in: int) -> None:
    relative = 1e-6 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(ours.double(), exact, rtol=relative, atol=3e-6 * num_in**0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 6, 7, 12, 13, 25, 100, 1000])
@pytest.mark.parametrize(("num_out", "num_in"), [(1, 1), (33, 7), (96, 64), (100, 33), (17, 576)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_product_equals_torch(dtype, rows, num_out, num_in, with_bias):
    x, weight, bias = make(rows, num_out, num_in, dtype)
    ours = PackedLinear(weight)(x, bias if with_bias else None)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double() if with_bias else None)
    assert ours.dtype == dtype
    assert_near(ours, exact, dtype, num_in)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize(("rows", "width", "num_in"), [(1, 32, 32), (5, 64, 64), (30, 96, 10), (13, 32, 31), (8, 160, 40), (6, 96, 33)])
def test_gated_product_equals_torch(dtype, kind, rows, width, num_in):
    x, weight, bias = make(rows, 2 * width, num_in, dtype)
    ours = PackedLinear(weight).gated(x, {"silu": 0, "gelu_tanh": 1, "gelu": 2}[kind], bias)
    gate, up = torch.nn.functional.linear(x.double(), weight.double(), bias.double()).chunk(2, dim=-1)
    functional = torch.nn.functional
    activated = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
    assert_near(ours, activated * up, dtype, 10 * num_in)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_gets_the_same_bits_whatever_the_batch_and_threads(dtype):
    x, weight, bias = make(200, 333, 500, dtype)
    packed = PackedLinear(weight)
    whole = packed(x, bias)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5, 24):
            torch.set_num_threads(count)
            for first, last in [(0, 1), (3, 5), (7, 20), (50, 170), (0, 200)]:
                assert torch.equal(packed(x[first:last], bias), whole[first:last]), (count, first, last)
    finally:
        torch.set_num_threads(threads)


def test_shapes_layouts_and_types_of_inputs():
    x, weight, _ = make(6, 40, 20, torch.bfloat16)
    packed = PackedLinear(weight)
    flat = packed(x)
    assert torch.equal(packed(x.view(2, 3, 20)), flat.view(2, 3, 40))
    assert torch.equal(packed(x.t().contiguous().t()), flat)
    assert torch.equal(packed(torch.cat((x, x), dim=1)[:, :20]), flat)
    assert packed.wide(x).dtype == torch.float32
    assert torch.equal(packed.wide(x).bfloat16(), flat)
    assert packed(x.float()).dtype == torch.float32
    with pytest.raises(AssertionError):
        packed(x[:, :19])


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Rows rounded to int8 by their largest magnitude, as numbers."""
    largest = x.float().abs().amax(dim=1, keepdim=True)
    inverse = torch.where(largest > 0, torch.tensor(127.0) / largest, 0)  # `127 / largest` would take a reciprocal first
    return (x.double() * inverse.double()).round() * (largest / 127).double()


def assert_nearly_all_near(ours: torch.Tensor, exact: torch.Tensor) -> None:
    """Where an input is as good as halfway between two integers, a compiler may round it either way: one step of it, rarely."""
    off = (ours.double() - exact).abs()
    tolerance = exact.abs() * (5e-3 if ours.dtype == torch.bfloat16 else 1e-6) + 1e-4
    assert off.numel() == 0 or ((off > tolerance).double().mean() < 0.5 and (off - tolerance).max() < 0.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 13, 100, 500])
@pytest.mark.parametrize(("num_out", "num_in"), [(1, 1), (33, 7), (96, 64), (100, 33), (17, 576), (64, 1536)])
def test_int8_product_equals_torch(dtype, rows, num_out, num_in):
    x, weight, bias = make(rows, num_out, num_in, dtype)
    if rows > 2:
        x[1] = 0
    scale = weight.float().abs().amax(dim=1) / 127
    integers = (weight.float() / scale[:, None]).round().to(torch.int8)
    exact = torch.nn.functional.linear(quantized(x), integers.double() * scale.double()[:, None], bias.double())
    packed = PackedLinear(integers, scale)
    ours = packed(x, bias)
    assert ours.dtype == dtype
    assert_nearly_all_near(ours, exact)
    assert packed.wide(x).dtype == torch.float32
    if rows > 6:
        assert torch.equal(packed(x[3:5], bias), ours[3:5])
    if num_out % 64 == 0:
        functional = torch.nn.functional
        gate, up = functional.linear(quantized(x), integers.double() * scale.double()[:, None]).chunk(2, dim=-1)
        assert_nearly_all_near(packed.gated(x, 0), functional.silu(gate) * up)


def test_int8_extremes_do_not_overflow():
    x, weight = torch.ones(2, 60000), torch.full((3, 60000), -128, dtype=torch.int8)
    x[1] = -1
    out = PackedLinear(weight, torch.ones(3))(x)
    torch.testing.assert_close(out, torch.tensor([[-128.0 * 60000] * 3, [128.0 * 60000] * 3]))
    assert try_pack_int8(torch.zeros(1, 70000, dtype=torch.int8), torch.ones(1)) is None


def test_types_without_a_kernel_are_not_packed():
    assert try_pack(torch.zeros(4, 4, dtype=torch.float64)) is None
    assert try_pack(torch.zeros(4, 4, dtype=torch.float16)) is None
    packed = try_pack(torch.zeros(4, 4))
    assert packed is not None and packed.nbytes == 32 * 4 * 4

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, DTYPE, ON_GPU, assert_close, randn
from torch import Tensor
from torch.nn import functional

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.norm import rms_norm_reference
from trivium.ops.triton import linear
from trivium.ops.triton.launch import ArrivalCounters
from trivium.ops.triton.matvec import MatvecConfig, matvec
from trivium.ops.triton.skinny import SkinnyConfig, skinny

TOLERANCE = 1e-2 if ON_GPU else 1e-5


def expected(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str = "", residual: Tensor | None = None, norm: Tensor | None = None) -> Tensor:
    if norm is not None:
        x = rms_norm_reference(x, norm, 1e-6, offset=1.0)
    y = functional.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
    if kind:
        y = act_and_mul_reference(y, kind)
    return y + residual.double() if residual is not None else y


def zeros(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int32, device=DEVICE)


MATVEC = [(1, 64, 64), (1, 33, 896), (2, 16, 96), (3, 10, 300), (8, 24, 128)]  # m, n, k
MATVEC += [(1, 6144, 4096), (4, 4096, 14336)] if ON_GPU else []


@pytest.mark.parametrize(("m", "n", "k"), MATVEC)
@pytest.mark.parametrize("rows", [1, 4])
def test_matvec(m: int, n: int, k: int, rows: int) -> None:
    x, weight, bias = randn(m, k), randn(n, k, scale=k**-0.5), randn(n)
    config = MatvecConfig(rows=rows, num_warps=4)
    assert_close(matvec(x, weight, config=config), expected(x, weight, None), TOLERANCE)
    assert_close(matvec(x, weight, bias), expected(x, weight, bias), TOLERANCE)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("m", [1, 3])
def test_matvec_gated_and_normed(kind: str, m: int) -> None:
    x, weight, norm, bias = randn(m, 96), randn(2 * 19, 96, scale=0.1), randn(96), randn(38)
    out = matvec(x, weight, bias, kind=kind, norm=norm, norm_eps=1e-6, norm_offset=1.0)
    assert_close(out, expected(x, weight, bias, kind, norm=norm), TOLERANCE)


def test_matvec_adds_to_the_residual_in_place() -> None:
    x, weight, residual = randn(2, 64), randn(17, 64, scale=0.1), randn(2, 17)
    want = expected(x, weight, None, residual=residual)
    out = matvec(x, weight, residual=residual, out=residual)
    assert out is residual
    assert_close(residual, want, TOLERANCE)


SKINNY = [  # m, n, k, block_n, block_k, programs per multiprocessor
    (2, 64, 64, 64, 32, 1),
    (16, 200, 256, 64, 32, 1),  # runs that span tiles
    (5, 64, 512, 64, 32, 2),  # many programs share a tile
    (33, 100, 96, 16, 64, 1),  # K not a multiple of the step
    (20, 48, 128, 16, 128, 3),  # a step a tile
] + ([(32, 6144, 4096, 64, 128, 2), (16, 4096, 14336, 64, 128, 2), (64, 1152, 896, 64, 128, 2), (128, 4096, 4096, 128, 64, 1)] if ON_GPU else [])


@pytest.mark.parametrize(("m", "n", "k", "block_n", "block_k", "programs"), SKINNY)
def test_skinny(m: int, n: int, k: int, block_n: int, block_k: int, programs: int) -> None:
    x, weight, bias = randn(m, k), randn(n, k, scale=k**-0.5), randn(n)
    arrivals = zeros(1024)
    config = SkinnyConfig(block_n=block_n, block_k=block_k, programs_per_sm=programs, num_stages=3)
    for b in (None, bias):
        assert_close(skinny(x, weight, b, arrivals, config=config), expected(x, weight, b), TOLERANCE)
        assert (arrivals == 0).all()


@pytest.mark.parametrize("kind", ["silu", "gelu"])
def test_skinny_gated_with_bias(kind: str) -> None:
    x, weight, bias = randn(9, 160), randn(2 * 70, 160, scale=0.1), randn(140)
    config = SkinnyConfig(block_n=64 if ON_GPU else 16, block_k=32, num_stages=3)
    assert_close(skinny(x, weight, bias, zeros(64), kind=kind, config=config), expected(x, weight, bias, kind), TOLERANCE)


def test_skinny_adds_to_the_residual_in_place() -> None:
    x, weight, residual = randn(18, 128), randn(100, 128, scale=0.1), randn(18, 100)
    want = expected(x, weight, None, residual=residual)
    skinny(x, weight, None, zeros(64), residual=residual, out=residual, config=SkinnyConfig(block_k=32, num_stages=2))
    assert_close(residual, want, TOLERANCE)


def test_skinny_gives_the_same_bits_each_time() -> None:
    x, weight = randn(16, 512), randn(128, 512, scale=0.1)
    arrivals, config = zeros(64), SkinnyConfig(block_k=32, num_stages=2)
    first = skinny(x, weight, None, arrivals, config=config)
    assert first.dtype == DTYPE
    assert all(torch.equal(skinny(x, weight, None, arrivals, config=config), first) for _ in range(20 if ON_GPU else 2))


HALF = torch.bfloat16 if ON_GPU else torch.float16


@pytest.mark.parametrize("m", [1, 2, 5, 40, 200])
def test_dispatched_products_equal_plain_steps(m: int) -> None:
    x, weight, bias = randn(m, 128).to(HALF), randn(192, 128, scale=0.1).to(HALF), randn(192).to(HALF)
    assert_close(linear.linear(x, weight, bias), expected(x, weight, bias), 1e-2)
    gated = linear.gated_linear(x, weight, bias, "silu")
    if m > linear.SKINNY_ROWS:
        assert gated is None
        return
    if gated is not None:
        assert_close(gated, expected(x, weight, bias, "silu"), 1e-2)


@pytest.mark.parametrize(
    ("m", "n", "k", "chosen"),
    [
        (1, 6144, 4096, "gemv"),
        (1, 4096, 40960, "library"),
        (2, 6144, 4096, "library"),
        (2, 1152, 896, "matvec"),
        (4, 1152, 896, "matvec"),
        (4, 9728, 896, "library"),
        (16, 4096, 14336, "skinny"),
        (32, 4096, 14336, "library"),
        (0, 4096, 4096, "library"),
    ],
)
def test_ways(m: int, n: int, k: int, chosen: str) -> None:
    assert linear.way(m, torch.empty(n, k, dtype=HALF, device="meta"), HALF) == chosen


def test_odd_weights_go_to_the_library() -> None:
    x, weight = randn(2, 100).to(HALF), randn(70, 100).to(HALF)
    assert linear.way(2, weight, HALF) == "library"
    assert linear.way(2, randn(128, 256).to(HALF).T, HALF) == "library"
    assert linear.way(2, randn(128, 128), torch.float32) == "library"
    assert_close(linear.linear(x, weight), expected(x, weight, None), 1e-2)


def test_counters_of_a_weight_stay_its_own() -> None:
    counters = ArrivalCounters()
    a, b = randn(4, 4), randn(4, 4)
    first = counters.for_weight(a, 10)
    assert counters.for_weight(a, 5).data_ptr() == first.data_ptr()
    other = counters.for_weight(b, 10)
    assert abs(other.data_ptr() - first.data_ptr()) >= 40
    assert counters.for_weight(a, 1000).numel() >= 1000

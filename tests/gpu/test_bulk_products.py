"""The Gluon kernel for few rows: Triton's interpreter does not know Gluon, so that it is checked on Hopper only."""

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, assert_close, randn
from torch import Tensor
from torch.nn import functional

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.triton import linear
from trivium.ops.triton.bulk import BulkConfig, bulk

pytestmark = pytest.mark.skipif(linear.bulk_kernels(None) is None, reason="needs a Hopper GPU")


def expected(x: Tensor, weight: Tensor, bias: Tensor | None = None, kind: str = "") -> Tensor:
    y = functional.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
    return act_and_mul_reference(y, kind) if kind else y


def zeros() -> Tensor:
    return torch.zeros(1 << 16, dtype=torch.int32, device=DEVICE)


SHAPES = [(32, 6144, 4096), (64, 4096, 14336), (3, 1000, 512), (16, 128256, 1024), (40, 136, 1032), (128, 4096, 4096), (17, 64, 64)]  # m, n, k
CONFIGS = [BulkConfig(), BulkConfig(block_n=64, programs_per_sm=2), BulkConfig(block_k=128, ring_bytes=150 << 10), BulkConfig(num_warps=8)]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products(m: int, n: int, k: int, config: BulkConfig) -> None:
    x, weight, bias = randn(m, k), randn(n, k, scale=k**-0.5), randn(n)
    arrivals = zeros()
    out = torch.full((m, n), float("nan"), dtype=x.dtype, device=DEVICE)
    assert_close(bulk(x, weight, None, arrivals, out=out, config=config), expected(x, weight))
    assert_close(bulk(x, weight, bias, arrivals, config=config), expected(x, weight, bias))
    assert (arrivals == 0).all()


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 14336, 4096), (5, 200, 160), (64, 4864, 896)])
def test_gated_products(kind: str, m: int, n: int, k: int) -> None:
    x, weight, bias = randn(m, k), randn(2 * n, k, scale=k**-0.5), randn(2 * n)
    assert_close(bulk(x, weight, bias, zeros(), kind=kind), expected(x, weight, bias, kind))


def test_adds_to_the_residual_in_place() -> None:
    x, weight, residual = randn(18, 4096), randn(1024, 4096, scale=1 / 64), randn(18, 1024)
    want = expected(x, weight) + residual.double()
    bulk(x, weight, None, zeros(), residual=residual, out=residual)
    assert_close(residual, want)


def test_rows_with_a_stride() -> None:
    wide, weight = randn(24, 2048), randn(4096, 1024, scale=1 / 32)
    x = wide[:, 512:1536]
    assert_close(bulk(x, weight, None, zeros()), expected(x, weight))


def test_gives_the_same_bits_each_time() -> None:
    x, weight, arrivals = randn(32, 4096), randn(4096, 4096, scale=1 / 64), zeros()
    first = bulk(x, weight, None, arrivals)
    assert all(torch.equal(bulk(x, weight, None, arrivals), first) for _ in range(50))


@pytest.mark.parametrize("m", [3, 16, 64])
def test_dispatched_for_large_weights(m: int) -> None:
    x, weight = randn(m, 4096), randn(6144, 4096, scale=1 / 64)
    assert linear.way(m, weight, x.dtype) == "bulk"
    assert_close(linear.linear(x, weight), expected(x, weight))
    gated = linear.gated_linear(x, weight, None, "silu")
    assert gated is not None
    assert_close(gated, expected(x, weight, kind="silu"))

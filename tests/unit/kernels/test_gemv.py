from __future__ import annotations

import pytest
from helpers_kernels import ON_GPU, assert_close, randn
from torch.nn import functional

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.triton.gemv import config_for, gemv, segments

SHAPES = [(64, 64), (70, 896), (33, 112), (40, 4864), (9, 256)] + ([(6144, 4096), (4096, 14336), (28672, 4096), (151936, 896)] if ON_GPU else [])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_product(n: int, k: int, *, has_bias: bool) -> None:
    x, weight, bias = randn(1, k), randn(n, k, scale=k**-0.5), randn(n) if has_bias else None
    expected = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_close(gemv(x, weight, bias), expected)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize(("n", "k"), [(64, 896), (128, 256), (64, 112)])
def test_gated_product(n: int, k: int, kind: str) -> None:
    x, weight, bias = randn(1, k), randn(n, k, scale=k**-0.5), randn(n)
    expected = act_and_mul_reference(functional.linear(x.double(), weight.double(), bias.double()), kind)
    assert_close(gemv(x, weight, bias, kind=kind), expected)


def test_padded_rows_of_the_weight() -> None:
    wide = randn(48, 512)
    x = randn(1, 448)
    assert_close(gemv(x, wide[:, :448]), functional.linear(x.double(), wide[:, :448].double()))


@pytest.mark.parametrize("k", [*range(64, 4096, 16), 4864, 8960, 14336, 28672])
def test_segments_cover_k_and_waste_little(k: int) -> None:
    parts = segments(k)
    assert sum(parts) >= k
    assert sum(parts[:2]) <= k
    assert all(part & (part - 1) == 0 for part in parts)
    assert sum(parts) < 1.15 * k


def test_configs_fill_their_warps() -> None:
    for k in (64, 896, 4096, 4864, 14336):
        for is_gated in (False, True):
            config = config_for(4096, k, is_gated=is_gated)
            assert config.rows & (config.rows - 1) == 0
            assert config.num_warps & (config.num_warps - 1) == 0
            assert config.num_warps <= 16

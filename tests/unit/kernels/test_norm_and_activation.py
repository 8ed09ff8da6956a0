from __future__ import annotations

import pytest
import torch
from helpers_kernels import DTYPE, ON_GPU, assert_close, randn

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.norm import add_rms_norm_reference, rms_norm_reference
from trivium.ops.triton.activation import KINDS, act_and_mul
from trivium.ops.triton.norm import add_rms_norm, rms_norm

SHAPES = [(1, 64), (3, 96), (5, 896), (2, 4096)] + ([(1, 4096), (300, 8192), (64, 5120)] if ON_GPU else [])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_equals_reference(shape: tuple[int, int], offset: float) -> None:
    x, weight = randn(*shape, scale=3.0), randn(shape[1])
    assert_close(rms_norm(x, weight, 1e-6, offset=offset), rms_norm_reference(x, weight, 1e-6, offset=offset))


@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm_equals_reference_and_updates_residual(shape: tuple[int, int]) -> None:
    x, residual, weight = randn(*shape), randn(*shape), randn(shape[1])
    expected, expected_residual = add_rms_norm_reference(x, residual.clone(), weight, 1e-5)
    out, new_residual = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(out, expected)
    assert torch.equal(new_residual, expected_residual)


def test_rms_norm_takes_heads_and_row_strides() -> None:
    wide = randn(4, 3, 2 * 64)
    x, weight = wide[..., :64], randn(64)
    assert_close(rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))


def test_norms_of_no_rows_are_empty() -> None:
    x = randn(0, 64)
    assert rms_norm(x, randn(64), 1e-6).shape == (0, 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 64), (3, 2 * 96), (2, 2 * 1100)] + ([(1000, 2 * 14336), (1, 2 * 4864)] if ON_GPU else []))
def test_act_and_mul_equals_reference(kind: str, shape: tuple[int, int]) -> None:
    x = randn(*shape, scale=2.0)
    assert_close(act_and_mul(x, kind), act_and_mul_reference(x.to(torch.float32), kind).to(DTYPE))

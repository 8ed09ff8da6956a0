"""AWQ, GPTQ and rounding to a grid: what calibration is for, it must show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trivium.quantization.awq import search_factors
from trivium.quantization.calibration import Inputs
from trivium.quantization.gptq import gptq
from trivium.quantization.rounding import Rounded, round_groups


def correlated(rows: int, width: int) -> Tensor:
    """Inputs of a few directions, of which some channels are far larger."""
    torch.manual_seed(width)
    channels = torch.ones(width)
    channels[:: width // 4] = 12.0
    return (torch.randn(rows, width // 4) @ torch.randn(width // 4, width) + 0.1 * torch.randn(rows, width)) * channels


def observed(x: Tensor) -> Inputs:
    return Inputs(x.T @ x / len(x), x.abs().mean(dim=0), x)


def product_error(weight: Tensor, rounded: Tensor, x: Tensor) -> float:
    return float((x @ (rounded - weight).T).square().mean())


def check_form(rounded: Rounded, weight: Tensor, group: int) -> None:
    assert rounded.codes.dtype == rounded.zeros.dtype == torch.uint8 and rounded.scales.dtype == torch.float16
    assert rounded.codes.shape == weight.shape and int(rounded.codes.max()) <= 15
    assert rounded.scales.shape == rounded.zeros.shape == (weight.shape[0], weight.shape[1] // group)
    assert torch.equal(rounded.groups.bincount(), torch.full((weight.shape[1] // group,), group))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group", [32, 192])
def test_gptq_makes_up_for_what_rounding_loses(act_order: bool, group: int) -> None:
    x, weight = correlated(400, 192), torch.randn(24, 192)
    rounded = gptq(weight, observed(x).hessian, group, act_order=act_order)
    check_form(rounded, weight, group)
    assert bool((rounded.zeros == 8).all())
    nearest = gptq(weight, torch.eye(192), group, act_order=False)
    torch.testing.assert_close(nearest.codes.float(), (weight / nearest.scales.float()[:, nearest.groups]).round().clamp(-8, 7) + 8)
    assert product_error(weight, rounded.dequantize(), x) < 0.6 * product_error(weight, nearest.dequantize(), x)
    if act_order and group < 192:
        assert not torch.equal(rounded.groups, rounded.groups.sort().values)


def test_gptq_survives_inputs_that_never_come() -> None:
    x = correlated(50, 64)
    x[:, 5] = 0
    rounded = gptq(torch.randn(8, 64), observed(x).hessian, 32, act_order=True)
    assert bool(torch.isfinite(rounded.dequantize()).all())
    assert bool((rounded.dequantize()[:, 5] == 0).all())
    assert bool(torch.isfinite(gptq(torch.randn(8, 64), torch.zeros(64, 64), 32, act_order=False).dequantize()).all())


def test_awq_spares_the_inputs_that_matter() -> None:
    x, weight = correlated(300, 128), torch.randn(32, 128)
    factors = search_factors(weight, observed(x), 32)
    scaled = round_groups(weight * factors, 32).dequantize() / factors
    assert product_error(weight, scaled, x) < 0.7 * product_error(weight, round_groups(weight, 32).dequantize(), x)


def test_ranges_are_cut_where_that_helps() -> None:
    x, weight = correlated(300, 128), torch.randn(32, 128) ** 3
    plain, cut = round_groups(weight, 32), round_groups(weight, 32, x.square().mean(dim=0))
    check_form(cut, weight, 32)
    importance = x.square().mean(dim=0)

    def error(rounded: Rounded) -> float:
        return float(((rounded.dequantize() - weight).square() * importance).sum())

    assert error(cut) < error(plain)


def test_a_matrix_of_zeros_and_one_of_tiny_numbers() -> None:
    for weight in (torch.zeros(4, 32), torch.full((4, 32), 1e-9)):
        assert (round_groups(weight, 32).dequantize() - weight).abs().max() <= 1e-5
        assert (gptq(weight, torch.eye(32), 32, act_order=False).dequantize() - weight).abs().max() <= 1e-5

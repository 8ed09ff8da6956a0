"""AWQ (Lin et al., https://arxiv.org/abs/2306.00978): inputs that matter are made larger before rounding, and what feeds them smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.quantization.calibration import Inputs
from trivium.quantization.rounding import round_groups

STEPS = 20
"""Exponents tried, from 0 (nothing is scaled) to just below 1."""
MIN_FACTOR = 1e-4


def search_factors(weight: Tensor, inputs: Inputs, group: int) -> Tensor:
    """float32 [K]: what each column of `weight` [N, K] is multiplied by, and each input divided by, so that products change least."""
    rows = inputs.rows.float()
    expected = rows @ weight.float().T
    best, best_error = torch.ones(weight.shape[1], device=weight.device), float("inf")
    for step in range(STEPS):
        factors = inputs.magnitude.clamp(min=MIN_FACTOR).pow(step / STEPS)
        factors = factors / (factors.max() * factors.min()).sqrt()
        rounded = round_groups(weight.float() * factors, group).dequantize() / factors
        error = float((rows @ rounded.T - expected).square().mean())
        if error < best_error:
            best, best_error = factors, error
    return best

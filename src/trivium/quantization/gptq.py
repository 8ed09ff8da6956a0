"""GPTQ (Frantar et al., https://arxiv.org/abs/2210.17323): columns are rounded one by one, and what each loses is made up for by those after it."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.quantization.rounding import Rounded, grid, to_codes

DAMPING = 0.01
"""Of the mean of the Hessian's diagonal, added to it."""
BLOCK = 128


def gptq(weight: Tensor, hessian: Tensor, group: int, *, act_order: bool) -> Rounded:
    """weight [N, K], symmetric; hessian float32 [K, K]: the mean of x x^T. With `act_order` columns of the largest inputs come first."""
    num_in = weight.shape[1]
    hessian, weight = hessian.clone(), weight.float().clone()
    diagonal = hessian.diagonal()
    dead = diagonal == 0
    diagonal[dead] = 1.0
    weight[:, dead] = 0.0
    order = diagonal.argsort(descending=True) if act_order else torch.arange(num_in, device=weight.device)
    weight, hessian = weight[:, order], hessian[order][:, order]
    codes, scales, zeros = _round_columns(weight, _inverse_factor(hessian), group)
    groups = torch.empty_like(order)
    groups[order] = torch.arange(num_in, device=weight.device) // group
    return Rounded(codes[:, order.argsort()].to(torch.uint8), scales.to(torch.float16), zeros.to(torch.uint8), groups)


def _inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse. Damped until it is positive definite."""
    damping = DAMPING * hessian.diagonal().mean()
    for _ in range(6):
        damped = hessian + damping * torch.eye(len(hessian), device=hessian.device)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if not failed:
                return inverse
        damping = damping * 10
    raise AssertionError("a sum of squares with a multiple of the identity is positive definite")


def _round_columns(weight: Tensor, inverse: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrites `weight`. Codes [N, K], scales and zero points [N, G], float32."""
    num_in = weight.shape[1]
    codes = torch.empty_like(weight)
    scales: list[Tensor] = []
    zeros: list[Tensor] = []
    for start in range(0, num_in, BLOCK):
        end = min(start + BLOCK, num_in)
        errors = torch.empty_like(weight[:, start:end])
        for column in range(start, end):
            if column % group == 0:
                # Columns of the group beyond this block lack only this block's corrections, as in the paper's own code.
                own = weight[:, column : column + group]
                scale, zero = grid(own.amin(dim=1), own.amax(dim=1), symmetric=True)
                scales.append(scale)
                zeros.append(zero)
            codes[:, column] = to_codes(weight[:, column], scales[-1], zeros[-1])
            error = (weight[:, column] - (codes[:, column] - zeros[-1]) * scales[-1]) / inverse[column, column]
            weight[:, column:end] -= error.unsqueeze(1) * inverse[column, column:end]
            errors[:, column - start] = error
        weight[:, end:] -= errors @ inverse[start:end, end:]
    return codes, torch.stack(scales, dim=1), torch.stack(zeros, dim=1)

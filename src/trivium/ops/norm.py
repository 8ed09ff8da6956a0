"""RMS norm, alone and fused with the addition to the residual stream. Reference: Zhang and Sennrich, https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.dispatch import fast_path


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    """x [..., H], weight [H] → [..., H] in x's dtype: `x / rms(x) * (offset + weight)`, in float32 inside. Gemma's offset is 1."""
    if fast := fast_path("rms_norm", x):
        return fast(x, weight, eps, offset=offset)
    return rms_norm_reference(x, weight, eps, offset=offset)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """x and residual [T, H] → (norm of the new residual, new residual). The new residual is `x + residual`; `residual` may be overwritten."""
    if fast := fast_path("add_rms_norm", x):
        return fast(x, residual, weight, eps, offset=offset)
    return add_rms_norm_reference(x, residual, weight, eps, offset=offset)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    scale = weight.to(torch.float32)
    return (wide * (scale + offset if offset else scale)).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    residual = x + residual
    return rms_norm_reference(residual, weight, eps, offset=offset), residual

"""Rotary position embedding: tables of cosines and sines for every scaling in use, and the rotation itself.

Su et al., https://arxiv.org/abs/2104.09864; YaRN: Peng et al., https://arxiv.org/abs/2309.00071; LongRoPE: Ding et al.,
https://arxiv.org/abs/2402.13753. What depends on a length was fixed when the `RopeSpec` was read (see `trivium.arch.rope`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trivium.arch.rope import RopeSpec


def inverse_frequencies(spec: RopeSpec) -> Tensor:
    """Angle per position of each pair of dimensions: [rotary_dim / 2] float32 on the CPU."""
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64).to(torch.float32) / spec.rotary_dim
    periods = spec.theta**exponents
    if spec.kind == "default":
        return 1.0 / periods
    if spec.kind == "linear":
        return 1.0 / periods / spec.factor
    if spec.kind == "longrope":
        return 1.0 / (torch.tensor(spec.divisors, dtype=torch.float32) * periods)
    if spec.kind == "llama3":
        return _llama3(spec, 1.0 / periods)
    assert spec.kind == "yarn", spec.kind
    return _yarn(spec, periods)


def cos_sin_table(spec: RopeSpec, num_positions: int, device: torch.device | str) -> Tensor:
    """[num_positions, rotary_dim] float32: the cosines of the rotary_dim / 2 angles, then their sines, both times the attention factor."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequencies(spec)
    return (torch.cat((angles.cos(), angles.sin()), dim=-1) * spec.attention_factor).to(device)


def rotate(x: Tensor, cos_sin: Tensor, positions: Tensor, *, rotary_dim: int, interleaved: bool = False) -> Tensor:
    """Rotate the first `rotary_dim` entries of each head.

    x [T, heads, D], cos_sin [max_pos, rotary_dim] float32, positions [T] → [T, heads, D] in x's dtype. Pairs are (i, i + rotary_dim / 2),
    or (2i, 2i + 1) if `interleaved`.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, rotary_dim / 2] each
    head = x[..., :rotary_dim].to(torch.float32)
    if interleaved:
        first, second = head[..., 0::2], head[..., 1::2]
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = head.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    rotated = rotated.to(x.dtype)
    return rotated if rotary_dim == x.shape[-1] else torch.cat((rotated, x[..., rotary_dim:]), dim=-1)


def _llama3(spec: RopeSpec, inv_freq: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1's model card)."""
    wavelengths = 2 * math.pi / inv_freq
    smooth = (spec.original_max_len / wavelengths - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blended = (1 - smooth) * inv_freq / spec.factor + smooth * inv_freq
    is_long = wavelengths > spec.original_max_len / spec.low_freq_factor
    is_short = wavelengths < spec.original_max_len / spec.high_freq_factor
    return torch.where(is_long, inv_freq / spec.factor, torch.where(is_short, inv_freq, blended))


def _yarn(spec: RopeSpec, periods: Tensor) -> Tensor:
    """NTK by parts (YaRN, section 3.2): a ramp over dimensions between interpolated and original frequencies."""
    dim = spec.rotary_dim

    def turning_dim(num_rotations: float) -> float:
        return dim * math.log(spec.original_max_len / (num_rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = turning_dim(spec.beta_fast), turning_dim(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (spec.factor * periods) * (1 - kept) + 1.0 / periods * kept

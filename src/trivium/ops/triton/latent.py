"""What MLA does between its projections and attention, in one kernel: the latent's norm, both rotations, and the write to the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.attention.base import KVCache
from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger
from trivium.ops.triton.qkv import norm_and_rotate, to_cache


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _prepare_mla_kernel(
    q_ptr, compressed_ptr, norm_ptr, cos_sin_ptr, positions_ptr, slots_ptr, q_out_ptr, cache_ptr,
    stride_qt, stride_qh, stride_ct, stride_cos, stride_b, stride_s, eps,
    H: tl.constexpr, L: tl.constexpr, R: tl.constexpr, PAGE: tl.constexpr, HEADS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of each token: program 0 makes what is cached, the others rotate HEADS heads of the query each."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    wait_and_trigger(PDL)
    if group == 0:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            target = cache_ptr + (slot // PAGE) * stride_b + (slot % PAGE) * stride_s
            c = tl.arange(0, BLOCK_L)
            latent = tl.load(compressed_ptr + token * stride_ct + c, mask=c < L, other=0.0).to(tl.float32)
            scale = tl.rsqrt(tl.sum(latent * latent, axis=0) / L + eps)
            weight = tl.load(norm_ptr + c, mask=c < L, other=0.0).to(tl.float32)
            normed = (latent * scale * weight).to(compressed_ptr.dtype.element_ty)
            tl.store(target + c, to_cache(normed, cache_ptr.dtype.element_ty), mask=c < L)
            one = tl.arange(0, 1)
            norm_and_rotate(
                compressed_ptr + token * stride_ct + L + one[:, None], target + L + one[:, None], one < 1, cos_sin_ptr, positions_ptr, norm_ptr,
                token, stride_cos, eps, R, R // 2, BLOCK_HALF, 1, INTERLEAVED, False, 0.0, False,
            )  # fmt: skip
    else:
        heads = (group - 1) * HEADS + tl.arange(0, HEADS)
        rows = q_ptr + token * stride_qt + heads[:, None] * stride_qh
        target = q_out_ptr + (token * H + heads[:, None]) * R
        norm_and_rotate(
            rows, target, heads < H, cos_sin_ptr, positions_ptr, norm_ptr, token,
            stride_cos, eps, R, R // 2, BLOCK_HALF, 1, INTERLEAVED, False, 0.0, False,
        )  # fmt: skip


def prepare_mla(
    query_rope: Tensor, compressed: Tensor, latent_norm: Tensor, cos_sin: Tensor, positions: Tensor, slots: Tensor, cache: KVCache,
    *, interleaved: bool, norm_eps: float,
) -> Tensor:  # fmt: skip
    """query_rope [T, H, R], compressed [T, L + R] → rotated [T, H, R]; the normed latent and the rotated key go to the cache at `slots` (-1:
    nowhere). See `ops.qkv.prepare_mla`."""
    assert query_rope.stride(-1) == 1 and compressed.stride(-1) == 1 and cache.key.stride(-1) == 1
    num_tokens, num_heads, rope_dim = query_rope.shape
    latent_dim = latent_norm.shape[0]
    assert compressed.shape[1] == latent_dim + rope_dim == cache.key.shape[2] and cos_sin.shape[1] == rope_dim
    out = torch.empty(num_tokens, num_heads, rope_dim, dtype=query_rope.dtype, device=query_rope.device)
    if num_tokens == 0:
        return out
    heads = min(next_pow2(num_heads), 16)
    with on_device(query_rope):
        run(_prepare_mla_kernel, (num_tokens, 1 + cdiv(num_heads, heads)))(
            query_rope, compressed, latent_norm, cos_sin, positions, slots, out, cache.key,
            query_rope.stride(0), query_rope.stride(1), compressed.stride(0), cos_sin.stride(0), cache.key.stride(0), cache.key.stride(1), norm_eps,
            H=num_heads, L=latent_dim, R=rope_dim, PAGE=cache.key.shape[1], HEADS=heads, BLOCK_L=next_pow2(latent_dim),
            BLOCK_HALF=next_pow2(rope_dim // 2), INTERLEAVED=interleaved, num_warps=2, **pdl(query_rope),
        )  # fmt: skip
    return out

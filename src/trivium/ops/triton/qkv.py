"""From the packed projection to attention in one kernel: per-head QK norm, rotary embedding, and the write of K and V to the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, wait_and_trigger


@triton.jit
def to_cache(x, out_type: tl.constexpr):
    """As `ops.qkv.to_cache`."""
    if out_type == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(out_type)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _prepare_qkv_kernel(
    qkv_ptr, cos_sin_ptr, positions_ptr, slots_ptr, q_norm_ptr, k_norm_ptr, q_out_ptr, k_cache_ptr, v_cache_ptr,
    stride_t, stride_cos, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_D: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM_Q: tl.constexpr, NORM_K: tl.constexpr, OFFSET: tl.constexpr, KEYS_IN_PLACE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program does HEADS heads of one token: program_id(1) runs over groups of query heads, then key heads, then value heads."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    Q_GROUPS: tl.constexpr = (HQ + HEADS - 1) // HEADS
    KV_GROUPS: tl.constexpr = (HKV + HEADS - 1) // HEADS
    wait_and_trigger(PDL)

    if group >= Q_GROUPS + KV_GROUPS:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            heads = (group - Q_GROUPS - KV_GROUPS) * HEADS + tl.arange(0, HEADS)
            d = tl.arange(0, BLOCK_D)
            mask = (heads < HKV)[:, None] & (d < D)[None, :]
            v = tl.load(qkv_ptr + token * stride_t + (HQ + HKV + heads)[:, None] * D + d[None, :], mask=mask)
            target = v_cache_ptr + (slot // PAGE) * stride_vb + heads[:, None] * stride_vh + (slot % PAGE) * stride_vs + d[None, :]
            tl.store(target, to_cache(v, v_cache_ptr.dtype.element_ty), mask=mask)
    elif group >= Q_GROUPS:
        slot = tl.load(slots_ptr + token)
        if slot >= 0:
            heads = (group - Q_GROUPS) * HEADS + tl.arange(0, HEADS)
            rows = qkv_ptr + token * stride_t + (HQ + heads)[:, None] * D
            target = k_cache_ptr + (slot // PAGE) * stride_kb + heads[:, None] * stride_kh + (slot % PAGE) * stride_ks
            norm_and_rotate(
                rows, target, heads < HKV, cos_sin_ptr, positions_ptr, k_norm_ptr, token, stride_cos, eps,
                D, HALF, BLOCK_HALF, BLOCK_REST, INTERLEAVED, NORM_K, OFFSET, KEYS_IN_PLACE,
            )  # fmt: skip
    else:
        heads = group * HEADS + tl.arange(0, HEADS)
        rows = qkv_ptr + token * stride_t + heads[:, None] * D
        target = q_out_ptr + token * (HQ * D) + heads[:, None] * D
        norm_and_rotate(
            rows, target, heads < HQ, cos_sin_ptr, positions_ptr, q_norm_ptr, token, stride_cos, eps,
            D, HALF, BLOCK_HALF, BLOCK_REST, INTERLEAVED, NORM_Q, OFFSET, False,
        )  # fmt: skip


@triton.jit
def norm_and_rotate(
    rows, target, head_mask, cos_sin_ptr, positions_ptr, norm_ptr, token, stride_cos, eps,
    D: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM: tl.constexpr, OFFSET: tl.constexpr, IN_PLACE: tl.constexpr,
):  # fmt: skip
    """`rows` and `target` [HEADS, 1] point at heads. The first 2 * HALF entries rotate, as two halves or as pairs; the rest passes.
    With IN_PLACE the result goes to `rows`, too: each thread overwrites only what it has read itself."""
    out_type = target.dtype.element_ty
    i = tl.arange(0, BLOCK_HALF)
    mask = head_mask[:, None] & (i < HALF)[None, :]
    if INTERLEAVED:
        first = 2 * i
        second = 2 * i + 1
    else:
        first = i
        second = i + HALF
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)
    rest_mask = head_mask[:, None] & (rest < D)[None, :]

    a = tl.load(rows + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(rows + second[None, :], mask=mask, other=0.0).to(tl.float32)
    if 2 * HALF < D:
        c = tl.load(rows + rest[None, :], mask=rest_mask, other=0.0).to(tl.float32)
    if NORM:
        square = tl.sum(a * a + b * b, axis=1)
        if 2 * HALF < D:
            square += tl.sum(c * c, axis=1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        in_type = rows.dtype.element_ty
        a = (a * scale * (tl.load(norm_ptr + first, mask=i < HALF, other=0.0).to(tl.float32) + OFFSET)[None, :]).to(in_type).to(tl.float32)
        b = (b * scale * (tl.load(norm_ptr + second, mask=i < HALF, other=0.0).to(tl.float32) + OFFSET)[None, :]).to(in_type).to(tl.float32)
        if 2 * HALF < D:
            c = c * scale * (tl.load(norm_ptr + rest, mask=rest < D, other=0.0).to(tl.float32) + OFFSET)[None, :]
    if HALF > 0:
        position = tl.load(positions_ptr + token)
        cos = tl.load(cos_sin_ptr + position * stride_cos + i, mask=i < HALF, other=0.0)[None, :]
        sin = tl.load(cos_sin_ptr + position * stride_cos + HALF + i, mask=i < HALF, other=0.0)[None, :]
        tl.store(target + first[None, :], to_cache(a * cos - b * sin, out_type), mask=mask)
        tl.store(target + second[None, :], to_cache(b * cos + a * sin, out_type), mask=mask)
        if IN_PLACE:
            tl.store(rows + first[None, :], (a * cos - b * sin).to(rows.dtype.element_ty), mask=mask)
            tl.store(rows + second[None, :], (b * cos + a * sin).to(rows.dtype.element_ty), mask=mask)
    if 2 * HALF < D:
        tl.store(target + rest[None, :], to_cache(c, out_type), mask=rest_mask)
        if IN_PLACE and NORM:
            tl.store(rows + rest[None, :], c.to(rows.dtype.element_ty), mask=rest_mask)


def prepare_qkv(
    qkv: Tensor, cos_sin: Tensor | None, positions: Tensor, slots: Tensor, cache: KVCache, args: AttentionArgs, *, rotary_dim: int,
    interleaved: bool = False, q_norm: Tensor | None = None, k_norm: Tensor | None = None, norm_eps: float = 1e-6, norm_offset: float = 0.0,
    keys_in_place: bool = False,
) -> Tensor:  # fmt: skip
    """qkv [T, (Hq + 2 * Hkv) * D] → rotated q [T, Hq, D]; K and V go to the cache at `slots` [T] (-1: nowhere).

    cos_sin [positions, rotary_dim] float32: cosines of the rotary_dim / 2 angles, then their sines. None: nothing rotates.
    `keys_in_place`: the keys in qkv are overwritten by the rotated ones.
    """
    assert cache.value is not None, "MLA writes its cache elsewhere"
    assert qkv.stride(-1) == 1 and cache.key.stride(-1) == 1 and cache.value.stride(-1) == 1
    num_tokens, dim = qkv.shape[0], args.head_dim
    half = rotary_dim // 2 if cos_sin is not None else 0
    out = torch.empty(num_tokens, args.num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return out
    # Few tokens: many small programs. Many tokens: as many heads a program as keep its registers few.
    heads = min(next_pow2(args.num_kv_heads), 2 if num_tokens <= 64 else 8)
    groups = cdiv(args.num_heads, heads) + 2 * cdiv(args.num_kv_heads, heads)
    with on_device(qkv):
        run(_prepare_qkv_kernel, (num_tokens, groups))(
            qkv, cos_sin if cos_sin is not None else qkv, positions, slots,
            q_norm if q_norm is not None else qkv, k_norm if k_norm is not None else qkv, out, cache.key, cache.value,
            qkv.stride(0), cos_sin.stride(0) if cos_sin is not None else 0, *cache.key.stride()[:3], *cache.value.stride()[:3], norm_eps,
            HQ=args.num_heads, HKV=args.num_kv_heads, D=dim, HALF=half, PAGE=cache.key.shape[2], HEADS=heads,
            BLOCK_HALF=next_pow2(max(half, 1)), BLOCK_REST=next_pow2(max(dim - 2 * half, 1)), BLOCK_D=next_pow2(dim),
            INTERLEAVED=interleaved, NORM_Q=q_norm is not None, NORM_K=k_norm is not None, OFFSET=norm_offset, KEYS_IN_PLACE=keys_in_place,
            num_warps=max(1, min(4, heads * next_pow2(dim) // 256)), **pdl(qkv),
        )  # fmt: skip
    return out

"""From the merged projection to attention's inputs: QK norm, rotation, and keys and values into the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.dispatch import fast_path
from trivium.ops.norm import rms_norm_reference
from trivium.ops.rope import rotate


def prepare_qkv(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    cache: KVCache,
    args: AttentionArgs,
    *,
    rotary_dim: int,
    interleaved: bool = False,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 1e-6,
    norm_offset: float = 0.0,
    keys_in_place: bool = False,
) -> Tensor:
    """qkv [T, (num_heads + 2 * num_kv_heads) * head_dim] → rotated queries [T, num_heads, head_dim].

    Queries and keys are normed per head if `q_norm` and `k_norm` [head_dim] are given, then rotated by `cos_sin[positions]` (see `ops.rope`;
    None: not at all). Keys and values go to the cache at `slots` [T]; slot -1: nowhere that anyone reads.
    With `keys_in_place` the keys in `qkv` are overwritten by the rotated ones, for back ends that ask for them (`wants_fresh`).
    """
    fast = fast_path("prepare_qkv", qkv) or prepare_qkv_reference
    extra = {"keys_in_place": True} if keys_in_place else {}
    return fast(
        qkv,
        cos_sin,
        positions,
        slots,
        cache,
        args,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
        q_norm=q_norm,
        k_norm=k_norm,
        norm_eps=norm_eps,
        norm_offset=norm_offset,
        **extra,
    )


def prepare_qkv_reference(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    cache: KVCache,
    args: AttentionArgs,
    *,
    rotary_dim: int,
    interleaved: bool = False,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 1e-6,
    norm_offset: float = 0.0,
    keys_in_place: bool = False,
) -> Tensor:
    heads = qkv.view(qkv.shape[0], args.num_heads + 2 * args.num_kv_heads, args.head_dim)
    query, key, value = heads.split((args.num_heads, args.num_kv_heads, args.num_kv_heads), dim=1)
    if q_norm is not None:
        query = rms_norm_reference(query, q_norm, norm_eps, offset=norm_offset)
    if k_norm is not None:
        key = rms_norm_reference(key, k_norm, norm_eps, offset=norm_offset)
    if cos_sin is not None:
        query = rotate(query, cos_sin, positions, rotary_dim=rotary_dim, interleaved=interleaved)
        key = rotate(key, cos_sin, positions, rotary_dim=rotary_dim, interleaved=interleaved)
    write_kv(key, value, slots, cache)
    if keys_in_place:
        heads[:, args.num_heads : args.num_heads + args.num_kv_heads] = key
    return query.contiguous()


def write_kv(key: Tensor, value: Tensor, slots: Tensor, cache: KVCache) -> None:
    """key and value [T, num_kv_heads, head_dim] into the cache at `slots` [T]. Slot -1 lands in block 0, which belongs to nobody."""
    assert cache.value is not None
    block_size = cache.key.shape[2]
    slots = slots.clamp(min=0)
    blocks, offsets = slots // block_size, slots % block_size
    cache.key[blocks, :, offsets] = to_cache(key, cache.key.dtype)
    cache.value[blocks, :, offsets] = to_cache(value, cache.value.dtype)


def to_cache(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the cache's type; an 8-bit one (e4m3, scale 1) holds at most 448, and larger numbers become that."""
    if dtype == torch.float8_e4m3fn and x.dtype != dtype:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype)
    return x.to(dtype)


def prepare_mla(
    query_rope: Tensor,
    compressed: Tensor,
    latent_norm: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: KVCache,
    *,
    interleaved: bool,
    norm_eps: float,
) -> Tensor:
    """MLA's counterpart of `prepare_qkv`: query_rope [T, heads, R], compressed [T, L + R] → rotated query part [T, heads, R].

    The latent `compressed[:, :L]` is normed by `latent_norm` [L], the shared key `compressed[:, L:]` rotated; both go to the cache.
    """
    fast = fast_path("prepare_mla", query_rope) or prepare_mla_reference
    return fast(query_rope, compressed, latent_norm, cos_sin, positions, slots, cache, interleaved=interleaved, norm_eps=norm_eps)


def prepare_mla_reference(
    query_rope: Tensor,
    compressed: Tensor,
    latent_norm: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: KVCache,
    *,
    interleaved: bool,
    norm_eps: float,
) -> Tensor:
    latent_dim, rope_dim = latent_norm.shape[0], query_rope.shape[-1]
    latent = rms_norm_reference(compressed[:, :latent_dim], latent_norm, norm_eps)
    key = rotate(compressed[:, None, latent_dim:], cos_sin, positions, rotary_dim=rope_dim, interleaved=interleaved)[:, 0]
    slots = slots.clamp(min=0)
    flat = cache.key.view(-1, cache.key.shape[-1])  # [num_blocks * block_size, L + R]
    flat[slots, :latent_dim] = to_cache(latent, flat.dtype)
    flat[slots, latent_dim:] = to_cache(key, flat.dtype)
    return rotate(query_rope, cos_sin, positions, rotary_dim=rope_dim, interleaved=interleaved)

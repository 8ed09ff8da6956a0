from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, DTYPE, assert_close, randn

from trivium.ops.attention.base import KVCache
from trivium.ops.qkv import prepare_mla_reference
from trivium.ops.triton.latent import prepare_mla


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "latent", "rope"), [(5, 4, 64, 16), (3, 20, 48, 32), (1, 16, 512, 64), (7, 1, 32, 8)])
def test_equals_reference(tokens: int, heads: int, latent: int, rope: int, interleaved: bool) -> None:
    query, compressed, norm = randn(tokens, heads, 24 + rope)[..., 24:], randn(tokens, latent + rope), randn(latent)  # a view of the whole query
    angles = torch.rand(64, rope // 2, device=DEVICE) * 6.28
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 64, (tokens,), device=DEVICE)
    slots = 8 + torch.randperm(24, device=DEVICE)[:tokens]
    if tokens > 1:
        slots[-1] = -1
    caches = [KVCache(torch.zeros(4, 8, latent + rope, dtype=DTYPE, device=DEVICE), None) for _ in range(2)]
    outs = [
        prepare(query, compressed, norm, cos_sin, positions, slots, cache, interleaved=interleaved, norm_eps=1e-5)
        for prepare, cache in zip((prepare_mla, prepare_mla_reference), caches, strict=True)
    ]
    assert_close(*outs)
    assert_close(caches[0].key[1:], caches[1].key[1:])


def test_fp8_cache_holds_at_most_448() -> None:
    compressed = randn(2, 48)
    compressed[0, 40] = 5000.0
    cos_sin = torch.cat((torch.ones(4, 8, device=DEVICE), torch.zeros(4, 8, device=DEVICE)), dim=-1)
    cache = KVCache(torch.zeros(2, 8, 48, dtype=torch.float8_e4m3fn, device=DEVICE), None)
    at = torch.tensor([1, 2], device=DEVICE)
    prepare_mla(randn(2, 2, 16), compressed, randn(32), cos_sin, at, at + 8, cache, interleaved=False, norm_eps=1e-5)
    assert cache.key[1, 1, 40].item() == 448.0
    assert cache.key[1, 2].float().abs().sum() > 0

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, ON_GPU, TOLERANCE, assert_close, make_cache, randn

from trivium.ops.attention.base import AttentionArgs
from trivium.ops.qkv import prepare_qkv_reference
from trivium.ops.triton.qkv import prepare_qkv

CASES = [  # tokens, heads, kv heads, head dim, rotary dim, interleaved, qk norm
    (5, 4, 2, 64, 64, False, False),
    (3, 14, 2, 64, 64, False, False),
    (2, 4, 1, 128, 128, True, False),
    (4, 6, 6, 80, 32, False, False),
    (3, 4, 2, 96, 96, False, True),
    (3, 3, 3, 64, 16, True, True),
    (2, 8, 4, 128, 128, False, True),
] + ([(1, 32, 8, 128, 128, False, False), (700, 32, 8, 128, 128, False, True), (65, 14, 2, 64, 64, False, False)] if ON_GPU else [])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("block_size", [8, 32])
def test_prepare_qkv_equals_reference(case: tuple[int, int, int, int, int, bool, bool], block_size: int) -> None:
    tokens, heads, kv_heads, dim, rotary_dim, interleaved, qk_norm = case
    args = AttentionArgs(heads, kv_heads, dim, dim**-0.5)
    qkv = randn(tokens, (heads + 2 * kv_heads) * dim)
    angles = torch.rand(4096, rotary_dim // 2, device=DEVICE) * 6.28
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 4096, (tokens,), device=DEVICE)
    num_blocks = 2 + -(-tokens // block_size)
    slots = block_size + torch.randperm((num_blocks - 1) * block_size, device=DEVICE)[:tokens]
    slots[-1] = -1  # padding
    norms = {"q_norm": randn(dim), "k_norm": randn(dim), "norm_offset": 1.0} if qk_norm else {}
    cache, expected_cache = make_cache(num_blocks, kv_heads, block_size, dim), make_cache(num_blocks, kv_heads, block_size, dim)
    expected_cache.key.copy_(cache.key)
    expected_cache.value.copy_(cache.value)

    expected = prepare_qkv_reference(qkv, cos_sin, positions, slots, expected_cache, args, rotary_dim=rotary_dim, interleaved=interleaved, **norms)
    out = prepare_qkv(qkv, cos_sin, positions, slots, cache, args, rotary_dim=rotary_dim, interleaved=interleaved, **norms)

    assert_close(out, expected)
    assert_close(cache.key[1:], expected_cache.key[1:], max(TOLERANCE, 1e-6))
    assert torch.equal(cache.value[1:], expected_cache.value[1:])


def test_prepare_qkv_without_rotation_only_moves() -> None:
    args = AttentionArgs(2, 1, 64, 0.125)
    qkv, cache = randn(3, 4 * 64), make_cache(3, 1, 8, 64)
    slots = torch.tensor([9, 8, 20], device=DEVICE)
    out = prepare_qkv(qkv, None, slots, slots, cache, args, rotary_dim=64)
    assert torch.equal(out.flatten(1), qkv[:, :128])
    assert torch.equal(cache.key[1, 0, 1], qkv[0, 128:192])
    assert torch.equal(cache.value[2, 0, 4], qkv[2, 192:])


def test_prepare_qkv_leaves_other_slots_alone() -> None:
    args = AttentionArgs(2, 2, 64, 0.125)
    cache = make_cache(3, 2, 8, 64)
    before = cache.key.clone()
    position, slot = torch.tensor([0], device=DEVICE), torch.tensor([-1], device=DEVICE)
    prepare_qkv(randn(1, 6 * 64), None, position, slot, cache, args, rotary_dim=64)
    assert torch.equal(cache.key, before)


@pytest.mark.parametrize("case", CASES)
def test_keys_in_place(case: tuple[int, int, int, int, int, bool, bool]) -> None:
    tokens, heads, kv_heads, dim, rotary_dim, interleaved, qk_norm = case
    args = AttentionArgs(heads, kv_heads, dim, dim**-0.5)
    qkv = randn(tokens, (heads + 2 * kv_heads) * dim)
    expected = qkv.clone()
    angles = torch.rand(64, rotary_dim // 2, device=DEVICE) * 6.28
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions, slots = torch.randint(0, 64, (tokens,), device=DEVICE), 8 + torch.arange(tokens, device=DEVICE)
    norms = {"q_norm": randn(dim), "k_norm": randn(dim), "norm_offset": 1.0} if qk_norm else {}
    cache = make_cache(2 + -(-tokens // 8), kv_heads, 8, dim)
    for prepare, rows in ((prepare_qkv_reference, expected), (prepare_qkv, qkv)):
        prepare(rows, cos_sin, positions, slots, cache, args, rotary_dim=rotary_dim, interleaved=interleaved, keys_in_place=True, **norms)
    assert_close(qkv, expected)
    split = [heads * dim, kv_heads * dim, kv_heads * dim]
    query, _, value = qkv.split(split, dim=1)
    expected_query, _, expected_value = expected.split(split, dim=1)
    assert torch.equal(query, expected_query)
    assert torch.equal(value, expected_value)


@pytest.mark.parametrize("rotary_dim", [64, 32, 0])
def test_fp8_cache_holds_at_most_448(rotary_dim: int) -> None:
    args = AttentionArgs(2, 2, 64, 0.125)
    qkv = randn(6, 6 * 64, scale=100.0)
    qkv[2, 2 * 64 + 40] = 2000.0
    qkv[3, 4 * 64 + 3] = -9000.0
    angles = torch.rand(16, max(rotary_dim // 2, 1), device=DEVICE) * 6.28
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1) if rotary_dim else None
    slots = torch.tensor([9, 8, 20, 17, -1, 12], device=DEVICE)
    caches = [make_cache(3, 2, 8, 64, dtype=torch.float8_e4m3fn) for _ in range(2)]
    for prepare, cache in zip((prepare_qkv, prepare_qkv_reference), caches, strict=True):
        cache.key.zero_()
        cache.value.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        prepare(qkv, cos_sin, slots % 16, slots, cache, args, rotary_dim=rotary_dim)
    out, expected = caches
    step = 0.01 if ON_GPU else 0.15  # the interpreter cuts off where a GPU rounds
    assert out.value is not None
    assert expected.value is not None
    assert_close(out.key[1:], expected.key[1:], step)
    assert_close(out.value[1:], expected.value[1:], step)
    assert out.value[2, 0, 1, 3].item() == -448.0
    assert out.key[1:].float().abs().max() <= 448.0

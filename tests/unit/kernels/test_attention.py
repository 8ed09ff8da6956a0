from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers_kernels import DEVICE, DTYPE, ON_GPU, assert_close, make_batch, make_cache, randn

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.triton import decode

NUM_BLOCKS = 160


def check(query_lens: list[int], seq_lens: list[int], args: AttentionArgs, block_size: int, backend: TritonAttention | None = None) -> None:
    needed = 1 + sum(-(-n // block_size) for n in seq_lens)
    batch = make_batch(query_lens, seq_lens, block_size, needed)
    cache = make_cache(needed, args.num_kv_heads, block_size, args.head_dim)
    query = randn(sum(query_lens), args.num_heads, args.head_dim)
    reference = ReferenceAttention()
    reference.plan(batch)
    expected = reference.forward(query, cache, batch, args)

    blind = replace(batch, query_starts_cpu=None, seq_lens_cpu=None, attn=None)  # as in a captured graph
    backend = backend or TritonAttention(DEVICE)
    backend.plan(blind)
    for _ in range(2):  # the second launch finds the arrival counters as the first left them
        assert_close(backend.forward(query, cache, blind, args), expected)


def args(heads: int, kv_heads: int, dim: int, **more: float | int) -> AttentionArgs:
    return AttentionArgs(heads, kv_heads, dim, dim**-0.5, **more)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_decode_for_every_block_size(block_size: int) -> None:
    check([1, 1, 1], [1, 70, 300], args(4, 2, 64), block_size)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 2), (14, 2), (8, 1), (6, 2), (16, 1), (32, 1)])
def test_decode_for_every_group(heads: int, kv_heads: int) -> None:
    check([1, 1], [33, 129], args(heads, kv_heads, 64), 16)


@pytest.mark.parametrize("dim", [32, 64, 80, 96, 112, 128, 256])
def test_decode_and_prefill_for_every_head_dim(dim: int) -> None:
    check([1, 1, 9], [65, 7, 40], args(4, 2, dim), 16)


@pytest.mark.parametrize("window", [1, 5, 64, 100])
def test_windows(window: int) -> None:
    check([1, 1, 70, 3], [40, 200, 90, 150], args(4, 2, 64, window=window), 16)


def test_softcap() -> None:
    check([1, 20], [70, 33], args(4, 2, 64, softcap=5.0), 16)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (14, 2), (4, 1), (24, 1)])
def test_prefill_for_every_group(heads: int, kv_heads: int) -> None:
    check([40, 3], [40, 80], args(heads, kv_heads, 64), 16)


@pytest.mark.parametrize("block_size", [8, 64, 256])
def test_mixed_batch_with_prefixes(block_size: int) -> None:
    check([1, 1, 1, 5, 64, 130, 2], [1, 77, 128, 5, 200, 131, 300], args(4, 2, 64), block_size)


def test_prefill_only_batch() -> None:
    check([100, 17], [100, 17], args(4, 2, 64), 16)


def test_many_rows_to_search_through() -> None:
    check([2] * 131, [2] * 131, args(1, 1, 32), 8)


def test_padding_rows_give_zeros() -> None:
    batch = make_batch([1, 1, 1], [20, 0, 0], 16, 8, on_host=False)
    cache = make_cache(8, 2, 16, 64)
    backend = TritonAttention(DEVICE)
    backend.plan(batch)
    out = backend.forward(randn(3, 4, 64), cache, batch, args(4, 2, 64))
    assert torch.isfinite(out).all()
    assert (out[1:] == 0).all()


def test_nan_past_the_end_of_a_row_does_not_matter() -> None:
    batch = make_batch([1, 6], [20, 21], 16, 8)
    cache = make_cache(8, 2, 16, 64)
    for row, seq_len in enumerate([20, 21]):
        block = int(batch.block_tables[row, 1])
        cache.key[block, :, seq_len - 16 :] = float("nan")
        cache.value[block, :, seq_len - 16 :] = float("nan")
    cache.value[0] = float("nan")
    backend = TritonAttention(DEVICE)
    backend.plan(batch)
    assert torch.isfinite(backend.forward(randn(7, 4, 64), cache, batch, args(4, 2, 64))).all()


def test_two_windows_in_one_step_have_two_schedules() -> None:
    batch = make_batch([1, 1], [300, 90], 16, NUM_BLOCKS)
    cache = make_cache(NUM_BLOCKS, 2, 16, 64)
    query = randn(2, 4, 64)
    backend, reference = TritonAttention(DEVICE), ReferenceAttention()
    backend.plan(batch)
    for window in (None, 50):
        layer = args(4, 2, 64, window=window)
        assert_close(backend.forward(query, cache, batch, layer), reference.forward(query, cache, batch, layer))
    assert len(batch.attn.schedules) == 2


def test_fixed_splits_give_the_same_bits_in_any_batch() -> None:
    layer = args(4, 2, 64)
    cache = make_cache(NUM_BLOCKS, 2, 16, 64)
    batch = make_batch([1] * 4, [300, 17, 200, 90], 16, NUM_BLOCKS)
    query = randn(4, 4, 64)
    backend = TritonAttention(DEVICE, fixed_split_tokens=128)
    backend.plan(batch)
    together = backend.forward(query, cache, batch, layer)
    alone = replace(
        batch, block_tables=batch.block_tables[:1], seq_lens=batch.seq_lens[:1], query_starts=batch.query_starts[:2], num_decodes=1, max_seq_len=300
    )
    backend.plan(alone)
    assert torch.equal(backend.forward(query[:1], cache, alone, layer)[0], together[0])
    check([1] * 4, [300, 17, 200, 90], layer, 16, backend)


@pytest.mark.parametrize("window", [None, 40])
def test_schedule_covers_every_tile_once(window: int | None) -> None:
    lens = [0, 1, 64, 65, 1000, 5000, 129, 0, 333]
    layer = args(4, 2, 64, window=window)
    config = decode.DecodeConfig(tile=32)
    plan = decode.schedule(torch.tensor(lens, dtype=torch.int32, device=DEVICE), layer, config)
    num_items = int(plan.num_items)
    assert num_items <= plan.max_items
    seen: dict[int, list[int]] = {row: [] for row in range(len(lens))}
    slots: list[int] = []
    for row, run, base, split in plan.items[:num_items].tolist():
        seen[row] += range(run & 0xFFFF, (run & 0xFFFF) + (run >> 16))
        if base >= 0:
            slots.append(base + (split >> 16))
            assert (split & 0xFFFF) > 1
    for row, n in enumerate(lens):
        first = max(n - window, 0) // 32 if window else 0
        assert seen[row] == list(range(first, -(-n // 32)))
    assert len(slots) == len(set(slots))
    assert max(slots, default=0) < plan.max_partials


def test_fp8_cache() -> None:
    layer = args(8, 2, 128)
    batch = make_batch([1, 1, 40], [300, 90, 60], 16, NUM_BLOCKS)
    cache = make_cache(NUM_BLOCKS, 2, 16, 128, dtype=torch.float8_e4m3fn)
    wide = type(cache)(key=cache.key.to(DTYPE), value=cache.value.to(DTYPE))  # pyright: ignore[reportOptionalMemberAccess]
    query = randn(42, 8, 128)
    backend, reference = TritonAttention(DEVICE), ReferenceAttention()
    backend.plan(batch)
    assert_close(backend.forward(query, cache, batch, layer), reference.forward(query, wide, batch, layer))


@pytest.mark.parametrize(
    ("heads", "latent", "rope"),
    [(16, 64, 16), (8, 32, 32), (32, 64, 16), (64, 32, 16), (24, 48, 16)] + ([(16, 512, 64), (128, 512, 64)] if ON_GPU else []),
)
@pytest.mark.parametrize(("query_lens", "seq_lens"), [([1, 1, 1], [1, 70, 300]), ([1, 6, 33], [90, 6, 60])])
def test_mla(heads: int, latent: int, rope: int, query_lens: list[int], seq_lens: list[int]) -> None:
    layer = AttentionArgs(heads, 1, latent + rope, 0.1)
    batch = make_batch(query_lens, seq_lens, 16, NUM_BLOCKS)
    cache = KVCache(key=randn(NUM_BLOCKS, 16, latent + rope), value=None)
    query = randn(sum(query_lens), heads, latent + rope)
    backend, reference = TritonAttention(DEVICE), ReferenceAttention()
    expected = reference.forward_mla(query, cache, batch, layer, latent)
    blind = replace(batch, query_starts_cpu=None, seq_lens_cpu=None, attn=None)
    backend.plan(blind)
    for _ in range(2):
        assert_close(backend.forward_mla(query, cache, blind, layer, latent), expected)


def test_mla_with_fp8_cache() -> None:
    layer = AttentionArgs(16, 1, 80, 0.1)
    batch = make_batch([1, 6], [300, 60], 16, NUM_BLOCKS)
    cache = KVCache(key=randn(NUM_BLOCKS, 16, 80).to(torch.float8_e4m3fn), value=None)
    query = randn(7, 16, 80)
    backend, reference = TritonAttention(DEVICE), ReferenceAttention()
    backend.plan(batch)
    expected = reference.forward_mla(query, KVCache(cache.key.to(DTYPE), None), batch, layer, 64)
    assert_close(backend.forward_mla(query, cache, batch, layer, 64), expected)

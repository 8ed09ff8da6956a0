"""Paged attention against the torch reference, and the promise that a query's result doesn't depend on what it is computed with."""

from __future__ import annotations

import pytest
import torch
from helpers_cpu_kernels import make_batch

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu import library
from trivium.ops.cpu.attention import paged_attention

pytestmark = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_tensors(tokens: int, num_blocks: int, block_size: int, args: AttentionArgs, dtype: torch.dtype) -> tuple[torch.Tensor, KVCache]:
    torch.manual_seed(1)
    shape = (num_blocks, args.num_kv_heads, block_size, args.head_dim)
    query = torch.randn(tokens, args.num_heads, args.head_dim).mul_(2).to(dtype)
    return query, KVCache(torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))


def both(batch: ForwardBatch, query: torch.Tensor, cache: KVCache, args: AttentionArgs) -> tuple[torch.Tensor, torch.Tensor]:
    wide = KVCache(cache.key.float(), cache.value.float())
    return paged_attention(query, cache, batch, args), ReferenceAttention().forward(query.float(), wide, batch, args)


ROWS = {
    "one decode": [(1, 1)],
    "decodes": [(1, 5), (1, 16), (1, 17), (1, 100), (1, 64), (1, 65)],
    "prefill": [(70, 70)],
    "chunk": [(33, 200)],
    "mixed": [(1, 130), (1, 3), (40, 40), (7, 90), (150, 151)],
    "long": [(1, 1300), (3, 700)],
    "empty row": [(1, 4), (0, 0), (2, 9)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window", "softcap", "block_size"),
    [
        (9, 3, 64, None, None, 16),
        (4, 4, 16, None, None, 8),
        (8, 1, 128, 37, None, 32),
        (2, 1, 80, None, 20.0, 64),
        (3, 1, 10, 5, 3.0, 8),
        (2, 2, 256, 600, None, 256),
        (120, 1, 32, None, None, 16),
        (5, 5, 7, None, None, 128),
    ],
)
def test_attention_equals_reference(dtype, rows, heads, kv_heads, dim, window, softcap, block_size):
    args = AttentionArgs(heads, kv_heads, dim, dim**-0.5, window, softcap)
    batch, num_blocks = make_batch(rows, block_size)
    query, cache = make_tensors(sum(queries for queries, _ in rows), num_blocks, block_size, args, dtype)
    ours, reference = both(batch, query, cache, args)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.float(), reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (100, 30.0)])
def test_a_query_gets_the_same_bits_alone_in_chunks_and_with_other_blocks(dtype, window, softcap):
    args = AttentionArgs(6, 2, 64, 0.125, window, softcap)
    length = 1100
    torch.manual_seed(2)
    key, value = (torch.randn(length, 2, 64).to(dtype) for _ in range(2))
    query = torch.randn(length, 6, 64).to(dtype)

    def run(first: int, count: int, block_size: int) -> torch.Tensor:
        batch, num_blocks = make_batch([(1, 1), (count, first + count)], block_size, seed=first)
        cache = KVCache(*(torch.full((num_blocks, 2, block_size, 64), float("nan"), dtype=dtype) for _ in range(2)))
        cache.key[0] = cache.value[0] = 0
        for at in range(first + count):
            block = batch.block_tables[1, at // block_size]
            cache.key[block, :, at % block_size], cache.value[block, :, at % block_size] = key[at], value[at]
        cache.key[batch.block_tables[0, 0], :, 0] = cache.value[batch.block_tables[0, 0], :, 0] = 1
        return paged_attention(torch.cat((query[:1], query[first : first + count])), cache, batch, args)[1:]

    whole = run(0, length, 16)
    assert not whole.isnan().any()
    for first, count, block_size in [(0, 5, 8), (5, 300, 64), (305, 1, 16), (1099, 1, 16), (700, 1, 256), (513, 200, 32)]:
        assert torch.equal(run(first, count, block_size), whole[first : first + count]), (first, count)


def test_threads_that_share_keys_get_the_same_bits():
    args = AttentionArgs(3, 1, 64, 0.125)
    batch, num_blocks = make_batch([(1, 2000)], 16)
    query, cache = make_tensors(1, num_blocks, 16, args, torch.bfloat16)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(paged_attention(query, cache, batch, args))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda batch: batch.block_tables.fill_(10_000),
        lambda batch: batch.block_tables.fill_(-1),
        lambda batch: batch.seq_lens.fill_(100_000),
        lambda batch: batch.seq_lens.fill_(0),
    ],
)
def test_a_contradictory_batch_is_refused(spoil):
    args = AttentionArgs(2, 1, 16, 0.25)
    batch, num_blocks = make_batch([(1, 20), (3, 30)], 8)
    query, cache = make_tensors(4, num_blocks, 8, args, torch.float32)
    spoil(batch)
    with pytest.raises(AssertionError):
        paged_attention(query, cache, batch, args)


def test_nan_stays_nan_in_its_row():
    args = AttentionArgs(1, 1, 16, 0.25)
    batch, num_blocks = make_batch([(1, 20), (1, 30)], 8)
    query, cache = make_tensors(2, num_blocks, 8, args, torch.float32)
    query[0] = float("nan")
    out = paged_attention(query, cache, batch, args)
    assert out[0].isnan().all() and not out[1].isnan().any()

"""The reference attention against a loop over single queries, on a cache whose unwritten entries are NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trivium.errors import ConfigError
from trivium.ops.attention import BACKENDS, create_attention_backend
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.dispatch import references_only

BLOCK, BLOCKS = 8, 40


def make_batch(rows: list[tuple[int, int]]) -> ForwardBatch:
    """Rows of (new tokens, length in the cache); blocks are given out in a scrambled order."""
    order = (torch.randperm(BLOCKS - 1, generator=torch.Generator().manual_seed(3)) + 1).tolist()
    starts, tables = [0], []
    for count, length in rows:
        starts.append(starts[-1] + count)
        tables.append([order.pop() for _ in range(-(-length // BLOCK))])
    width = max(map(len, tables))
    return ForwardBatch(
        input_ids=torch.zeros(starts[-1], dtype=torch.int32),
        positions=torch.cat([torch.arange(length - count, length) for count, length in rows]),
        slots=torch.zeros(starts[-1], dtype=torch.int64),
        block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor([length for _, length in rows], dtype=torch.int32),
        logits_indices=torch.arange(starts[-1]),
        num_decodes=sum(count == 1 for count, _ in rows),
        max_query_len=max(count for count, _ in rows),
        max_seq_len=max(length for _, length in rows),
        block_size=BLOCK,
    )


def slot_of(batch: ForwardBatch, row: int, position: int) -> tuple[int, int]:
    return int(batch.block_tables[row, position // BLOCK]), position % BLOCK


def one_query(query: Tensor, keys: Tensor, values: Tensor, at: int, args: AttentionArgs) -> Tensor:
    """query [D] at position `at`, keys and values [S, D]."""
    first = 0 if args.window is None else max(0, at - args.window + 1)
    scores = [float(query @ keys[position]) * args.scale for position in range(first, at + 1)]
    if args.softcap is not None:
        scores = [args.softcap * math.tanh(score / args.softcap) for score in scores]
    weights = torch.tensor(scores).softmax(dim=0)
    return weights @ values[first : at + 1]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 1, 5, 20])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_paged_attention(heads: tuple[int, int], window: int | None, softcap: float | None) -> None:
    num_heads, kv_heads = heads
    rows = [(1, 1), (1, 17), (5, 5), (9, 30)]
    batch, generator = make_batch(rows), torch.Generator().manual_seed(1)
    args = AttentionArgs(num_heads=num_heads, num_kv_heads=kv_heads, head_dim=16, scale=0.4, window=window, softcap=softcap)
    shape = (BLOCKS, kv_heads, BLOCK, 16)
    cache = KVCache(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
    contexts = []
    for row, (_, length) in enumerate(rows):
        keys, values = torch.randn(2, length, kv_heads, 16, generator=generator)
        for position in range(length):
            block, offset = slot_of(batch, row, position)
            cache.key[block, :, offset], cache.value[block, :, offset] = keys[position], values[position]  # type: ignore[index]
        contexts.append((keys, values))
    query = torch.randn(batch.num_tokens, num_heads, 16, generator=generator)
    backend = create_attention_backend("reference", "cpu")
    backend.plan(batch)
    out = backend.forward(query, cache, batch, args)
    token = 0
    for (count, length), (keys, values) in zip(rows, contexts, strict=True):
        for at in range(length - count, length):
            for head in range(num_heads):
                kv = head // (num_heads // kv_heads)
                expected = one_query(query[token, head], keys[:, kv], values[:, kv], at, args)
                torch.testing.assert_close(out[token, head], expected, atol=1e-5, rtol=1e-5)
            token += 1


def test_latent_attention_shares_one_vector_among_heads() -> None:
    rows, latent, rope = [(1, 12), (4, 9)], 24, 8
    batch, generator = make_batch(rows), torch.Generator().manual_seed(2)
    args = AttentionArgs(num_heads=3, num_kv_heads=1, head_dim=latent + rope, scale=0.3)
    cache = KVCache(torch.full((BLOCKS, BLOCK, latent + rope), torch.nan), None)
    contexts = []
    for row, (_, length) in enumerate(rows):
        vectors = torch.randn(length, latent + rope, generator=generator)
        for position in range(length):
            block, offset = slot_of(batch, row, position)
            cache.key[block, offset] = vectors[position]
        contexts.append(vectors)
    query = torch.randn(batch.num_tokens, 3, latent + rope, generator=generator)
    backend = create_attention_backend("reference", "cpu")
    backend.plan(batch)
    out = backend.forward_mla(query, cache, batch, args, latent)
    token = 0
    for (count, length), vectors in zip(rows, contexts, strict=True):
        for at in range(length - count, length):
            for head in range(3):
                expected = one_query(query[token, head], vectors, vectors[:, :latent], at, args)
                torch.testing.assert_close(out[token, head], expected, atol=1e-5, rtol=1e-5)
            token += 1


def test_a_row_without_tokens_is_skipped() -> None:
    batch = make_batch([(1, 3), (2, 4)])
    batch.query_starts, batch.seq_lens = torch.tensor([0, 0, 3]), torch.tensor([0, 4])
    args = AttentionArgs(num_heads=1, num_kv_heads=1, head_dim=4, scale=1.0)
    cache = KVCache(torch.randn(BLOCKS, 1, BLOCK, 4), torch.randn(BLOCKS, 1, BLOCK, 4))
    backend = create_attention_backend("reference", "cpu")
    backend.plan(batch)
    assert backend.forward(torch.randn(3, 1, 4), cache, batch, args).isfinite().all()


def test_back_ends_by_name() -> None:
    assert create_attention_backend("reference", "cpu").name == "reference"
    with pytest.raises(ConfigError, match="Unknown attention_backend 'nope'.*reference.*triton"):
        create_attention_backend("nope", "cpu")
    with pytest.raises(ConfigError, match="'triton' runs on cuda, not on cpu"):
        create_attention_backend("triton", "cpu")
    assert set(BACKENDS) >= {"reference", "cpu", "triton"}


def test_auto_is_the_reference_where_nothing_faster_is_available() -> None:
    with references_only("cpu"):
        assert create_attention_backend("auto", "cpu").name == "reference"

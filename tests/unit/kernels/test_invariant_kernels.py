"""Batch invariance: a row's result is the same to the bit, whatever is computed with it."""

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, ON_GPU, assert_close, make_batch, make_cache, randn
from torch.nn import functional

from trivium.ops.attention.base import AttentionArgs
from trivium.ops.attention.invariant import InvariantAttention
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.triton import invariant
from trivium.ops.triton.invariant import InvariantWeight, invariant_linear, num_segments

SHAPES = [(4096, 4096), (28672, 4096), (4096, 14336), (1000, 576)] if ON_GPU else [(96, 256), (200, 100), (40, 576)]
ROWS = [1, 2, 64, 100, 256, 257, 1000] if ON_GPU else [1, 5, 70]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_have_the_same_bits_at_any_number_of_rows(shape: tuple[int, int], has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(invariant, "FEW_ROWS", 4)  # both ways to add segments up, at sizes the interpreter can do
    num_out, k = shape
    weight, bias = randn(num_out, k, scale=k**-0.5), randn(num_out) if has_bias else None
    x = randn(max(ROWS), k)
    whole = invariant_linear(x, weight, bias)
    assert_close(whole, functional.linear(x.double(), weight.double(), bias.double() if bias is not None else None))
    wide = InvariantWeight(weight).wide(x)
    for rows in ROWS:
        for start in (0, max(ROWS) - rows):
            assert torch.equal(invariant_linear(x[start : start + rows], weight, bias), whole[start : start + rows])
            assert torch.equal(InvariantWeight(weight).wide(x[start : start + rows]), wide[start : start + rows])


def test_segments_are_whole_steps() -> None:
    for num_out, k in ((4096, 4096), (28672, 4096), (4096, 14336), (576, 576), (100, 1000)):
        segments = num_segments(num_out, k, 64)
        assert segments == 1 or k % (segments * 64) == 0
    assert num_segments(4096, 4096, 64) == 8
    assert num_segments(28672, 4096, 64) == 2


@pytest.mark.parametrize("args", [AttentionArgs(8, 2, 64, 0.125), AttentionArgs(4, 4, 32, 0.2, window=9, softcap=20.0)], ids=["grouped", "window"])
def test_attention_has_the_same_bits_in_chunks_and_one_by_one(args: AttentionArgs) -> None:
    length = 90
    cache = make_cache(64, args.num_kv_heads, 8, args.head_dim)
    query = randn(length, args.num_heads, args.head_dim)
    backend = InvariantAttention(DEVICE)
    tables = (torch.arange(12, dtype=torch.int32, device=DEVICE) + 3)[None]

    def run(start: int, end: int, beside: int) -> torch.Tensor:
        """The row's tokens `start` to `end`, behind `beside` rows of one token."""
        batch = make_batch([1] * beside + [end - start], [5 + row for row in range(beside)] + [end], 8, 64)
        batch.block_tables = functional.pad(batch.block_tables, (0, 12))[:, :12]
        batch.block_tables[beside] = tables[0]
        others = randn(beside, args.num_heads, args.head_dim)
        backend.plan(batch)
        return backend.forward(torch.cat((others, query[start:end])), cache, batch, args)[beside:]

    whole = run(0, length, 0)
    batch = make_batch([length], [length], 8, 64)
    batch.block_tables = tables
    assert_close(whole, ReferenceAttention().forward(query, cache, batch, args))
    for beside in (0, 3):
        for step in (1, 7, 40) if ON_GPU else (40, 53):
            pieces = [run(start, min(start + step, length), beside) for start in range(0, length, step)]
            if ON_GPU:
                assert torch.equal(torch.cat(pieces), whole), (beside, step)
            else:  # the interpreter's own products differ in the last bit from one row of a tile to another
                assert_close(torch.cat(pieces), whole, 1e-6)

"""Prompts that start in a step attend to its own keys and values; on a CPU, which lacks torch's kernel for it, a stand-in computes that."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers_kernels import DEVICE, ON_GPU, assert_close, make_batch, make_cache, randn
from torch import Tensor
from torch.nn import functional

from trivium.ops.attention import flash as backend_module
from trivium.ops.attention import fresh as fresh_module
from trivium.ops.attention.base import AttentionArgs
from trivium.ops.attention.flash import FlashPromptAttention
from trivium.ops.attention.fresh import FreshRows, find_fresh
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.qkv import write_kv

ARGS = AttentionArgs(4, 2, 64, 0.125)
MIXES = [
    ([1, 1, 5, 7, 3], [9, 1, 12, 7, 3], 3),
    ([5, 7], [5, 7], 0),
    ([1, 6], [4, 6], 1),
    ([6, 2, 9], [6, 4, 9], 2),
]
"""Query lengths, sequence lengths, first fresh row."""


def stand_in(query: Tensor, key: Tensor, value: Tensor, rows: FreshRows, args: AttentionArgs) -> Tensor:
    out = torch.empty_like(query)
    bounds = rows.starts.tolist()
    assert max(end - begin for begin, end in itertools.pairwise(bounds)) == rows.max_len
    for begin, end in itertools.pairwise(bounds):
        q, k, v = (part[begin:end].transpose(0, 1)[None] for part in (query, key, value))
        out[begin:end] = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=args.scale, enable_gqa=True)[0].transpose(0, 1)
    return out


@pytest.mark.parametrize(("query_lens", "seq_lens", "first"), MIXES)
def test_fresh_prompts_equal_reading_the_cache(query_lens: list[int], seq_lens: list[int], first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(backend_module, "attend_fresh", stand_in)
    block_size, num_blocks = 8, 32
    batch = make_batch(query_lens, seq_lens, block_size, num_blocks)
    cache = make_cache(num_blocks, ARGS.num_kv_heads, block_size, ARGS.head_dim)
    query = randn(batch.num_tokens, ARGS.num_heads, ARGS.head_dim)
    key, value = (randn(batch.num_tokens, ARGS.num_kv_heads, ARGS.head_dim) for _ in range(2))
    rows = torch.repeat_interleave(torch.arange(batch.num_rows, device=DEVICE), torch.tensor(query_lens, device=DEVICE))
    slots = batch.block_tables[rows, batch.positions // block_size] * block_size + batch.positions % block_size
    write_kv(key, value, slots, cache)
    backend, reference = FlashPromptAttention(DEVICE), ReferenceAttention()
    backend.plan(batch)
    fresh = batch.attn.fresh
    assert fresh is not None
    assert (fresh.first_row, fresh.first_token) == (first, sum(query_lens[:first]))
    out = backend.forward_fresh(query, key, value, cache, batch, ARGS)
    assert_close(backend.forward(query, cache, batch, ARGS), out)
    reference.plan(batch)
    assert_close(out, reference.forward(query, cache, batch, ARGS))


@pytest.mark.parametrize(("query_lens", "seq_lens"), [([1, 1], [1, 5]), ([4], [5]), ([3, 4], [3, 6])])
def test_rows_with_a_prefix_last_are_not_fresh(query_lens: list[int], seq_lens: list[int]) -> None:
    assert find_fresh(make_batch(query_lens, seq_lens, 8, 16)) is None


def test_decode_steps_of_graphs_are_not_looked_at() -> None:
    assert find_fresh(make_batch([4], [4], 8, 16, on_host=False)) is None


def test_windows_softcaps_and_float32_read_the_cache() -> None:
    batch = make_batch([4], [4], 8, 16)
    backend = FlashPromptAttention(DEVICE)
    backend.plan(batch)
    assert backend.wants_fresh(batch, ARGS, torch.bfloat16) == ON_GPU
    for args in (AttentionArgs(4, 2, 64, 0.125, window=8), AttentionArgs(4, 2, 64, 0.125, softcap=30.0)):
        assert not backend.wants_fresh(batch, args, torch.bfloat16)
    assert not backend.wants_fresh(batch, ARGS, torch.float32)


class FakeFlashAttention3:
    """Its one function, by torch's attention; as a tuple with the sums, or alone, as releases differ."""

    def __init__(self, *, with_sums: bool) -> None:
        self.with_sums = with_sums

    def flash_attn_varlen_func(
        self, q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, most_q: int, most_k: int, *, softmax_scale: float, causal: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        assert causal
        assert torch.equal(starts_q, starts_k)
        assert most_q == most_k
        out = stand_in(q, k, v, FreshRows(0, 0, starts_q, most_q), AttentionArgs(4, 2, 64, softmax_scale))
        return (out, out.new_zeros(1)) if self.with_sums else out


@pytest.mark.parametrize("with_sums", [False, True])
def test_flash_attention_3_is_used_where_it_is_installed(with_sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_module, "flash_attention_3", lambda: FakeFlashAttention3(with_sums=with_sums))
    monkeypatch.setattr(backend_module, "flash_attention_3", fresh_module.flash_attention_3)
    assert backend_module.is_default()
    starts = torch.tensor([0, 5, 12], dtype=torch.int32, device=DEVICE)
    query, key, value = randn(12, 4, 64), randn(12, 2, 64), randn(12, 2, 64)
    rows = FreshRows(0, 0, starts, 7)
    assert_close(fresh_module.attend_fresh(query, key, value, rows, ARGS), stand_in(query, key, value, rows, ARGS))
    assert not fresh_module.can_attend_fresh(ARGS, torch.float16, DEVICE)  # built for bfloat16 alone


def test_flash_attention_3_is_not_looked_for_without_hopper() -> None:
    if not ON_GPU:
        assert fresh_module.flash_attention_3() is None
        assert not backend_module.is_default()

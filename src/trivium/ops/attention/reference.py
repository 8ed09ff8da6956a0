"""Attention in plain torch: simple, right on any device, slow. Other back ends are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch


def create_backend(device: torch.device) -> AttentionBackend:
    return ReferenceAttention()


class ReferenceAttention(AttentionBackend):
    """Gathers each row's blocks and applies a float32 softmax."""

    name = "reference"

    def plan(self, batch: ForwardBatch) -> None:
        """Row bounds on the host; copied from the device only if the batch came without them."""
        if batch.query_starts_cpu is None:
            batch.query_starts_cpu = batch.query_starts.tolist()
        if batch.seq_lens_cpu is None:
            batch.seq_lens_cpu = batch.seq_lens.tolist()

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        assert cache.value is not None
        out = torch.zeros_like(query)
        for row, start, end, seq_len in _rows(batch):
            blocks = batch.block_tables[row, : -(-seq_len // batch.block_size)]
            key = _gather(cache.key, blocks, seq_len)
            value = _gather(cache.value, blocks, seq_len)
            out[start:end] = _attend(query[start:end], key, value, args)
        return out

    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        out = query.new_zeros(*query.shape[:2], value_dim)
        for row, start, end, seq_len in _rows(batch):
            blocks = batch.block_tables[row, : -(-seq_len // batch.block_size)]
            key = cache.key[blocks].flatten(0, 1)[:seq_len].unsqueeze(0)  # [1, seq_len, L + R]
            out[start:end] = _attend(query[start:end], key, key[..., :value_dim], args)
        return out


def _rows(batch: ForwardBatch) -> list[tuple[int, int, int, int]]:
    """(row, first token, end, length in the cache) of each row that has tokens."""
    assert batch.query_starts_cpu is not None, "plan() runs before forward()"
    assert batch.seq_lens_cpu is not None
    starts = batch.query_starts_cpu
    return [(row, starts[row], starts[row + 1], seq_len) for row, seq_len in enumerate(batch.seq_lens_cpu) if starts[row + 1] > starts[row]]


def _gather(cache: Tensor, blocks: Tensor, seq_len: int) -> Tensor:
    """Cache [num_blocks, heads, block_size, D] → [heads, seq_len, D]."""
    return cache[blocks].transpose(0, 1).flatten(1, 2)[:, :seq_len]


def _attend(query: Tensor, key: Tensor, value: Tensor, args: AttentionArgs) -> Tensor:
    """query [Q, heads, D] at the last Q positions, key [kv_heads, S, D], value [kv_heads, S, Dv] → [Q, heads, Dv]."""
    num_queries, seq_len, kv_heads = query.shape[0], key.shape[1], key.shape[0]
    grouped = query.to(torch.float32).view(num_queries, kv_heads, -1, query.shape[-1]).permute(1, 2, 0, 3)  # [kv_heads, group, Q, D]
    scores = grouped @ key.to(torch.float32).unsqueeze(1).transpose(-1, -2) * args.scale  # [kv_heads, group, Q, S]
    if args.softcap is not None:
        scores = torch.tanh(scores / args.softcap) * args.softcap
    at = torch.arange(seq_len - num_queries, seq_len, device=query.device)[:, None]
    before = torch.arange(seq_len, device=query.device)[None, :]
    visible = before <= at
    if args.window is not None:
        visible &= before > at - args.window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    out = weights @ value.to(torch.float32).unsqueeze(1)  # [kv_heads, group, Q, Dv]
    return out.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)

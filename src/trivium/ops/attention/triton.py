"""Attention by this project's kernels in Triton's language: always there on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.triton import decode, prefill
from trivium.ops.triton.launch import num_sms

NUM_ARRIVALS = 64 * 1024


def create_backend(device: torch.device) -> AttentionBackend:
    return TritonAttention(device)


@dataclass(slots=True)
class TritonPlan:
    """What layers of one step share: schedules of the decode rows, by what they depend on."""

    schedules: dict[tuple[int, int, decode.DecodeConfig], decode.DecodeSchedule] = field(default_factory=dict)


class TritonAttention(AttentionBackend):
    """Rows with one token go to the decode kernel, the others to the prefill kernel; nothing here waits for the device.

    Not to be shared by streams that run side by side: the decode kernel's arrival counters belong to one launch at a time.
    """

    name = "triton"

    def __init__(self, device: torch.device, *, fixed_split_tokens: int | None = None) -> None:
        """`fixed_split_tokens`: cut every decode row into runs of so many tokens, so that its result doesn't depend on the batch."""
        self.device = device
        self.fixed_split_tokens = fixed_split_tokens
        self._arrivals = torch.zeros(max(NUM_ARRIVALS, 64 * num_sms(device.index)), dtype=torch.int32, device=device)

    def plan(self, batch: ForwardBatch) -> None:
        batch.attn = TritonPlan()

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        decodes = batch.num_decodes
        if decodes == batch.num_rows:
            return self._decode(query, cache, batch, args)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if decodes:
            self._decode(query[:decodes], cache, batch, args, out=out)
        itemsize = query.element_size()
        config = prefill.config_for(args, query.shape[0] - decodes, batch.num_rows - decodes, batch.max_query_len, itemsize)
        return prefill.paged_prefill(
            query, cache, batch.block_tables[decodes:], batch.query_starts[decodes:], batch.seq_lens[decodes:], args, config, out=out
        )

    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        raise NotImplementedError

    def _decode(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, out: Tensor | None = None) -> Tensor:
        rows = query.shape[0]
        config = decode.config_for(args, cache.key.element_size())
        key = (args.window or 0, args.num_kv_heads, config)
        schedules = batch.attn.schedules
        if key not in schedules:
            schedules[key] = decode.schedule(
                batch.seq_lens[:rows], args, config, fixed_split_tokens=self.fixed_split_tokens, max_seq_len=batch.max_seq_len
            )
        return decode.paged_decode(
            query, cache, batch.block_tables[:rows], batch.seq_lens[:rows], args, schedules[key], self._arrivals, config, out=out
        )

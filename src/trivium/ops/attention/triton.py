"""Attention by this project's kernels in Triton's language: always there on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.attention.fresh import FreshRows
from trivium.ops.batch import ForwardBatch
from trivium.ops.triton import decode, mla, prefill
from trivium.ops.triton.launch import num_sms

NUM_ARRIVALS = 64 * 1024


def create_backend(device: torch.device) -> AttentionBackend:
    return TritonAttention(device)


@dataclass(slots=True)
class TritonPlan:
    """What layers of one step share: schedules of the decode rows, by what they depend on."""

    schedules: dict[tuple[int, int, decode.DecodeConfig], decode.DecodeSchedule] = field(default_factory=dict)
    token_rows: Tensor | None = None
    token_lens: Tensor | None = None
    fresh: FreshRows | None = None
    """Only set by back ends that treat such rows apart (`flash`)."""


class TritonAttention(AttentionBackend):
    """Rows with one token go to the decode kernel, the others to the prefill kernel; nothing here waits for the device.

    Not to be shared by streams that run side by side: the decode kernel's arrival counters belong to one launch at a time.
    """

    name = "triton"
    is_capturable = True

    def __init__(self, device: torch.device, *, fixed_split_tokens: int | None = None) -> None:
        """`fixed_split_tokens`: cut every decode row into runs of so many tokens, so that its result doesn't depend on the batch."""
        self.device = device
        self.fixed_split_tokens = fixed_split_tokens
        self._arrivals = torch.zeros(max(NUM_ARRIVALS, 64 * num_sms(device.index)), dtype=torch.int32, device=device)

    def plan(self, batch: ForwardBatch) -> None:
        batch.attn = TritonPlan()

    def forward(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
        if batch.num_decodes == batch.num_rows:
            return self._decode(query, cache, batch, args)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.paged(query, cache, batch, args, batch.num_rows, out)
        return out

    def paged(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, num_rows: int, out: Tensor) -> None:
        """The first `num_rows` rows, whose tokens are `query`: those with one token by the decode kernel, the others by the prefill kernel."""
        decodes = batch.num_decodes
        if decodes:
            self._decode(query[:decodes], cache, batch, args, out=out)
        if num_rows > decodes:
            config = prefill.config_for(args, query.shape[0] - decodes, num_rows - decodes, batch.max_query_len, query.element_size())
            tables, lens = batch.block_tables[decodes:num_rows], batch.seq_lens[decodes:num_rows]
            prefill.paged_prefill(query, cache, tables, batch.query_starts[decodes : num_rows + 1], lens, args, config, out=out)

    def forward_mla(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, value_dim: int) -> Tensor:
        """Each token is a row of the kernel, with the tokens up to its position as its length."""
        plan: TritonPlan = batch.attn
        if plan.token_rows is None:
            plan.token_rows, plan.token_lens = _tokens(batch)
        assert plan.token_lens is not None
        config = mla.config_for(args.num_heads, value_dim)
        lanes = -(-args.num_heads // config.block_h)
        key = (args.window or 0, lanes, config.decode)
        if key not in plan.schedules:
            plan.schedules[key] = decode.schedule(
                plan.token_lens, args, config.decode, lanes=lanes, fixed_split_tokens=self.fixed_split_tokens, max_seq_len=batch.max_seq_len
            )
        schedule = plan.schedules[key]
        arrivals = self._counters(schedule.max_partials * lanes)
        return mla.paged_mla(query, cache.key, batch.block_tables, plan.token_rows, plan.token_lens, args, value_dim, schedule, arrivals, config)

    def _decode(self, query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs, out: Tensor | None = None) -> Tensor:
        rows = query.shape[0]
        config = decode.config_for(args, cache.key.element_size())
        key = (args.window or 0, args.num_kv_heads, config)
        schedules = batch.attn.schedules
        if key not in schedules:
            schedules[key] = decode.schedule(
                batch.seq_lens[:rows], args, config, fixed_split_tokens=self.fixed_split_tokens, max_seq_len=batch.max_seq_len
            )
        schedule = schedules[key]
        arrivals = self._counters(schedule.max_partials * args.num_kv_heads)
        return decode.paged_decode(query, cache, batch.block_tables[:rows], batch.seq_lens[:rows], args, schedule, arrivals, config, out=out)

    def _counters(self, count: int) -> Tensor:
        """Zeros, left as zeros by every launch."""
        if self._arrivals.numel() < count:
            assert not (self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()), "run once before capturing a graph"
            self._arrivals = torch.zeros(count, dtype=torch.int32, device=self.device)
        return self._arrivals


def _tokens(batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """Row and visible length of each token, [T] int32 each."""
    rows = torch.arange(batch.num_rows, dtype=torch.int32, device=batch.seq_lens.device)
    if batch.num_tokens == batch.num_rows:
        return rows, batch.seq_lens
    rows = rows.repeat_interleave(batch.query_starts.diff(), output_size=batch.num_tokens)
    return rows, (batch.positions + 1).to(torch.int32)

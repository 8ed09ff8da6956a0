"""Grouped-query attention over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trivium.arch.spec import AttentionSpec
from trivium.errors import ConfigError
from trivium.layers.base import BuildContext, Layer
from trivium.layers.linear import Linear, row_parallel, split_evenly, stacked
from trivium.layers.norm import RMSNorm
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.collective import PartialSum
from trivium.ops.qkv import prepare_qkv


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Checkpoint names of one attention block, without `.weight`."""

    qkv: Sequence[str]
    """Query, key, value; or one name if the checkpoint keeps them stacked."""
    output: str
    q_norm: str = ""
    k_norm: str = ""


class Attention(Layer):
    """Heads are split over ranks; with fewer key-value heads than ranks, several ranks keep a copy of the same one."""

    def __init__(
        self, context: BuildContext, spec: AttentionSpec, names: AttentionNames, hidden_size: int, *, norm_eps: float, norm_offset: float
    ) -> None:
        parallel = context.parallel
        query = split_evenly(spec.num_heads, parallel.rank, parallel.size, "attention heads")
        kv = kv_head_range(spec.num_kv_heads, parallel.rank, parallel.size)
        dim = spec.head_dim
        query_rows, kv_rows = (query[0] * dim, query[1] * dim), (kv[0] * dim, kv[1] * dim)
        parts = [(spec.num_heads * dim, query_rows), (spec.num_kv_heads * dim, kv_rows), (spec.num_kv_heads * dim, kv_rows)]
        self.qkv: Linear = stacked(context, names.qkv, parts, hidden_size, bias=spec.qkv_bias)
        self.output: Linear = row_parallel(context, names.output, hidden_size, spec.num_heads * dim, bias=spec.output_bias)
        self.q_norm = RMSNorm(context, names.q_norm, dim, norm_eps, offset=norm_offset) if spec.qk_norm else None
        self.k_norm = RMSNorm(context, names.k_norm, dim, norm_eps, offset=norm_offset) if spec.qk_norm else None
        self.norm_eps = norm_eps
        self.norm_offset = norm_offset
        self.rope = context.rope_table(spec.rope)
        self.backend = context.attention
        self.parallel = parallel
        self.args = AttentionArgs(
            num_heads=query[1] - query[0],
            num_kv_heads=kv[1] - kv[0],
            head_dim=dim,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
        )

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor | PartialSum:
        """x [T, hidden] → [T, hidden]."""
        qkv, args = self.qkv(x), self.args
        is_fresh = self.backend.wants_fresh(batch, args, qkv.dtype)
        query = prepare_qkv(
            qkv,
            self.rope.cos_sin,
            batch.positions,
            batch.slots,
            cache,
            args,
            rotary_dim=self.rope.rotary_dim,
            interleaved=self.rope.interleaved,
            q_norm=self.q_norm.weight if self.q_norm else None,
            k_norm=self.k_norm.weight if self.k_norm else None,
            norm_eps=self.norm_eps,
            norm_offset=self.norm_offset,
            keys_in_place=is_fresh,
        )
        if is_fresh:
            key, value = qkv.view(len(qkv), -1, args.head_dim)[:, args.num_heads :].split((args.num_kv_heads, args.num_kv_heads), dim=1)
            out = self.backend.forward_fresh(query, key, value, cache, batch, args)  # [T, heads, head_dim]
        else:
            out = self.backend.forward(query, cache, batch, args)
        return self.parallel.sum_later(self.output(out.flatten(1)))


def kv_head_range(num_kv_heads: int, rank: int, size: int) -> tuple[int, int]:
    """Key-value heads of a rank: its share, or the one head it has in common with its neighbours."""
    if num_kv_heads >= size:
        return split_evenly(num_kv_heads, rank, size, "key-value heads")
    if size % num_kv_heads:
        raise ConfigError(
            f"tensor_parallel_size {size} is not a multiple of the model's key-value heads ({num_kv_heads}).", param="tensor_parallel_size"
        )
    head = rank // (size // num_kv_heads)
    return head, head + 1

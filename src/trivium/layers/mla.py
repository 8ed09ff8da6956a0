"""Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1 and its note on absorbing W_UK and W_UV).

The cache keeps one vector per token: the normed latent and one rotated key. Attention runs in the latent space: what turns a latent into
keys is applied to the query instead, what turns it into values is applied to the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.arch.spec import MlaSpec
from trivium.layers.base import BuildContext, Layer, Slot
from trivium.layers.linear import column_parallel, replicated, row_parallel, split_evenly
from trivium.layers.norm import RMSNorm
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.collective import PartialSum
from trivium.ops.linear import PackedWeight, try_pack_weight
from trivium.ops.qkv import prepare_mla

LATENT_NORM_EPS = 1e-6
"""Of the norms of the latents, whatever `rms_norm_eps` says: so in DeepSeek's own code and in transformers."""


@dataclass(frozen=True, slots=True)
class MlaNames:
    """Checkpoint names, without `.weight`."""

    query: str
    """Without query compression."""
    query_down: str
    query_norm: str
    query_up: str
    latent_down: str
    latent_norm: str
    latent_up: str
    output: str


class LatentAttention(Layer):
    """Heads are split over ranks; the latent and its cache are on every rank."""

    def __init__(self, context: BuildContext, spec: MlaSpec, names: MlaNames, hidden_size: int) -> None:
        parallel = context.parallel
        heads = split_evenly(spec.num_heads, parallel.rank, parallel.size, "attention heads")
        self.spec = spec
        self.num_heads = heads[1] - heads[0]
        query_rows = spec.num_heads * (spec.nope_dim + spec.rope_dim)
        if spec.q_lora_rank is None:
            self.query_down = self.query_norm = None
            self.query_up = column_parallel(context, names.query, query_rows, hidden_size)
        else:
            self.query_down = replicated(context, names.query_down, spec.q_lora_rank, hidden_size, bias=spec.bias)
            self.query_norm = RMSNorm(context, names.query_norm, spec.q_lora_rank, LATENT_NORM_EPS)
            self.query_up = column_parallel(context, names.query_up, query_rows, spec.q_lora_rank)
        self.latent_down = replicated(context, names.latent_down, spec.kv_lora_rank + spec.rope_dim, hidden_size, bias=spec.bias)
        self.latent_norm = RMSNorm(context, names.latent_norm, spec.kv_lora_rank, LATENT_NORM_EPS)
        self.latent_up = LatentUp(context, spec, names.latent_up, heads)
        self.output = row_parallel(context, names.output, hidden_size, spec.num_heads * spec.value_dim, bias=spec.bias)
        self.rope = context.rope_table(spec.rope)
        self.backend = context.attention
        self.parallel = parallel
        self.args = AttentionArgs(num_heads=self.num_heads, num_kv_heads=1, head_dim=spec.kv_lora_rank + spec.rope_dim, scale=spec.scale)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: KVCache) -> Tensor | PartialSum:
        """x [T, hidden] → [T, hidden]."""
        spec = self.spec
        query = self._query(x).view(x.shape[0], self.num_heads, spec.nope_dim + spec.rope_dim)
        nope, rope = query.split((spec.nope_dim, spec.rope_dim), dim=-1)
        rope = prepare_mla(
            rope,
            self.latent_down(x),
            self.latent_norm.weight,
            self.rope.cos_sin,
            batch.positions,
            batch.slots,
            cache,
            interleaved=self.rope.interleaved,
            norm_eps=LATENT_NORM_EPS,
        )
        query = torch.cat((self.latent_up.absorb_query(nope), rope), dim=-1)  # [T, heads, L + R]
        latent = self.backend.forward_mla(query, cache, batch, self.args, spec.kv_lora_rank)  # [T, heads, L]
        return self.parallel.sum_later(self.output(self.latent_up.expand_value(latent).flatten(1)))

    def _query(self, x: Tensor) -> Tensor:
        if self.query_down is None:
            return self.query_up(x)
        assert self.query_norm is not None
        return self.query_up(self.query_norm(self.query_down(x)))


class LatentUp(Layer):
    """`kv_b_proj` [heads * (N + V), L], taken apart after loading: key [H, N, L] and value [H, L, V], or a packed weight a head of each."""

    def __init__(self, context: BuildContext, spec: MlaSpec, name: str, heads: tuple[int, int]) -> None:
        self.spec = spec
        self.name = name
        self.heads = heads
        num_heads = heads[1] - heads[0]
        self.weight: Tensor | None = context.empty(num_heads, spec.nope_dim + spec.value_dim, spec.kv_lora_rank)
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.packed_keys: list[PackedWeight] = []
        self.packed_values: list[PackedWeight] = []

    def absorb_query(self, nope: Tensor) -> Tensor:
        """nope [T, H, N] → [T, H, L]."""
        if self.packed_keys:
            return _by_head(nope, self.packed_keys)
        assert self.key is not None
        return torch.bmm(nope.transpose(0, 1), self.key).transpose(0, 1)

    def expand_value(self, latent: Tensor) -> Tensor:
        """latent [T, H, L] → [T, H, V]."""
        if self.packed_values:
            return _by_head(latent, self.packed_values)
        assert self.value is not None
        return torch.bmm(latent.transpose(0, 1), self.value).transpose(0, 1)

    def slots(self) -> list[Slot]:
        assert self.weight is not None
        per_head = self.spec.nope_dim + self.spec.value_dim
        rows = slice(self.heads[0] * per_head, self.heads[1] * per_head)
        shape = (self.spec.num_heads * per_head, self.spec.kv_lora_rank)
        return [Slot(f"{self.name}.weight", shape, (((rows,), self.weight.flatten(0, 1)),))]

    def finish(self) -> None:
        assert self.weight is not None
        key, value = self.weight.split((self.spec.nope_dim, self.spec.value_dim), dim=1)
        self.weight = None
        self.packed_keys, self.packed_values = _packed(key.transpose(1, 2)), _packed(value)
        if not self.packed_keys:
            self.key = key.contiguous()
            self.value = value.transpose(1, 2).contiguous()

    def nbytes(self) -> int:
        return super().nbytes() + sum(weight.nbytes for weight in (*self.packed_keys, *self.packed_values))

    def keeps_rows_apart(self) -> bool:
        weights = (*self.packed_keys, *self.packed_values)
        return bool(weights) and all(weight.keeps_rows_apart for weight in weights)


def _packed(weights: Tensor) -> list[PackedWeight]:
    """weights [H, out, in] → one packed weight a head, or none at all."""
    found = [try_pack_weight(weight.contiguous()) for weight in weights]
    whole = [weight for weight in found if weight is not None]
    return whole if len(whole) == len(found) else []


def _by_head(x: Tensor, weights: list[PackedWeight]) -> Tensor:
    """x [T, H, in] → [T, H, out]."""
    return torch.stack([weight(x[:, head], None) for head, weight in enumerate(weights)], dim=1)

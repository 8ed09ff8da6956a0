"""The one decoder that every family is: embeddings, layers of attention and feed-forward around a residual stream, a norm, a head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.arch.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec
from trivium.layers.attention import Attention, AttentionNames
from trivium.layers.base import BuildContext, Layer
from trivium.layers.embedding import VocabMatrix
from trivium.layers.feed_forward import FeedForward
from trivium.layers.mla import LatentAttention, MlaNames
from trivium.layers.moe import MixtureOfExperts
from trivium.layers.norm import RMSNorm
from trivium.models.layout import LayerNames, Layout
from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.collective import PartialSum
from trivium.ops.decoder import FusedLayers


class Decoder(Layer):
    """Stateless between calls; what a step needs comes in `ForwardBatch` and the caches."""

    def __init__(self, spec: ModelSpec, layout: Layout, context: BuildContext) -> None:
        self.spec = spec
        self.dtype = context.dtype
        tied = spec.tie_embeddings
        self.embedding = VocabMatrix(context, layout.embedding, spec.vocab_size, spec.hidden_size, is_embedding=True, is_head=tied)
        self.layers = [DecoderLayer(spec, layer, layout.layer(index), context) for index, layer in enumerate(spec.layers)]
        self.norm = RMSNorm(context, layout.norm, spec.hidden_size, spec.norm_eps, offset=spec.norm_offset)
        self.head = None if tied else VocabMatrix(context, layout.head, spec.vocab_size, spec.hidden_size, is_embedding=False, is_head=True)
        # Rounded to the model's dtype, as the networks were trained with it.
        self.embed_scale = None if spec.embed_scale is None else torch.tensor(spec.embed_scale, dtype=context.dtype).item()

        self.fused: FusedLayers | None = None
        """All layers and the final norm as one op, where the device has one (`models.fused`); set after loading."""

    def forward(self, batch: ForwardBatch, caches: Sequence[KVCache]) -> Tensor:
        """One step: [T, hidden], normed. The attention back end has planned `batch`; keys and values of its tokens enter the caches."""
        residual = self.embedding.lookup(batch.input_ids)
        if self.embed_scale is not None:
            residual = residual * self.embed_scale
        if self.fused is not None:
            return self.fused(residual, batch, caches)
        hidden: Tensor | PartialSum | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden, residual = layer(hidden, residual, batch, cache)
        assert hidden is not None
        return self.norm.add(hidden, residual)[0]

    def compute_logits(self, hidden: Tensor, *, widen: bool = True) -> Tensor:
        """hidden [S, hidden] → [S, vocab] float32; without `widen` in the model's dtype, unless they are made in float32 anyway."""
        logits = (self.head or self.embedding).logits(hidden)
        if widen or self.spec.final_softcap is not None:
            logits = logits.to(torch.float32)
        if self.spec.final_softcap is not None:
            logits = torch.tanh(logits / self.spec.final_softcap) * self.spec.final_softcap
        return logits

    def memory_bytes(self) -> int:
        """Memory of all weights as they are kept, packed copies included."""
        return sum(layer.nbytes() for _, layer in self.walk())


class DecoderLayer(Layer):
    """Attention, then feed-forward, each behind a norm and added to the residual stream; with Gemma, each before another norm, too."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec, names: LayerNames, context: BuildContext) -> None:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(context, name, spec.hidden_size, spec.norm_eps, offset=spec.norm_offset)

        self.input_norm = norm(names.input_norm)
        self.attention = _create_attention(spec, layer, names, context)
        self.post_attention_norm = norm(names.post_attention_norm) if spec.post_norms else None
        self.feed_forward_norm = norm(names.feed_forward_norm)
        self.feed_forward = _create_feed_forward(spec, layer, names, context)
        self.post_feed_forward_norm = norm(names.post_feed_forward_norm) if spec.post_norms else None

    def __call__(
        self, hidden: Tensor | PartialSum | None, residual: Tensor, batch: ForwardBatch, cache: KVCache
    ) -> tuple[Tensor | PartialSum, Tensor]:
        """hidden [T, hidden] is the block output not yet added to `residual` (None before the first layer)."""
        if hidden is None:
            hidden = self.input_norm(residual)
        else:
            hidden, residual = self.input_norm.add(hidden, residual)
        hidden = self.attention(hidden, batch, cache)
        if self.post_attention_norm is not None:
            hidden = self.post_attention_norm(hidden)
        hidden, residual = self.feed_forward_norm.add(hidden, residual)
        hidden = self.feed_forward(hidden)
        if self.post_feed_forward_norm is not None:
            hidden = self.post_feed_forward_norm(hidden)
        return hidden, residual


def _create_attention(spec: ModelSpec, layer: LayerSpec, names: LayerNames, context: BuildContext) -> Attention | LatentAttention:
    if isinstance(layer.attention, AttentionSpec):
        assert isinstance(names.attention, AttentionNames)
        return Attention(context, layer.attention, names.attention, spec.hidden_size, norm_eps=spec.norm_eps, norm_offset=spec.norm_offset)
    assert isinstance(names.attention, MlaNames)
    return LatentAttention(context, layer.attention, names.attention, spec.hidden_size)


def _create_feed_forward(spec: ModelSpec, layer: LayerSpec, names: LayerNames, context: BuildContext) -> FeedForward | MixtureOfExperts:
    if isinstance(layer.feed_forward, FeedForwardSpec):
        return FeedForward(context, layer.feed_forward, names.feed_forward, spec.hidden_size, spec.activation)
    assert names.moe is not None
    return MixtureOfExperts(context, layer.feed_forward, names.moe, spec.hidden_size, spec.activation)

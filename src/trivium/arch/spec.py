"""`ModelSpec`: a decoder as data. Frozen, hashable, torch-free; sizes are those of the whole model, before any sharding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trivium.arch.quantization import QuantizationSpec
from trivium.arch.rope import RopeSpec

ActivationName = Literal["silu", "gelu_tanh", "gelu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """Grouped-query attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    window: int | None = None
    """A token sees itself and the `window - 1` tokens before it."""
    softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before the rotation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1)."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    """Part of a query or key head without position."""
    rope_dim: int
    """Part that is rotated; its key is one for all heads."""
    value_dim: int
    scale: float
    rope: RopeSpec
    bias: bool = False
    """Of the projections down to the latents, and of the output projection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForwardSpec:
    """Gated feed-forward: `down(act(gate(x)) * up(x))`."""

    intermediate_size: int
    bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingSpec:
    """How a token's experts are chosen and weighed."""

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = False
    """Weights of the chosen experts are made to add up to 1."""
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    """Only experts of this many best groups can be chosen."""
    group_score: Literal["max", "top2_sum"] = "max"
    correction_bias: bool = False
    """A learned bias per expert takes part in choosing, not in weighing."""
    float32: bool = False
    """Router logits are computed in float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoeSpec:
    """Mixture of experts, perhaps beside shared experts that every token uses."""

    num_experts: int
    intermediate_size: int
    """Of one expert."""
    routing: RoutingSpec
    shared_intermediate_size: int = 0
    """Of all shared experts together; 0: there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    attention: AttentionSpec | MlaSpec
    feed_forward: FeedForwardSpec | MoeSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class KVLayerSpec:
    """What one layer keeps per token: keys and values of `num_kv_heads` heads, or, for MLA, one vector of `latent_dim` numbers."""

    num_kv_heads: int
    head_dim: int
    latent_dim: int | None = None
    window: int | None = None

    def shard(self, size: int) -> KVLayerSpec:
        """The part one of `size` tensor-parallel ranks keeps. Fewer heads than ranks: heads are repeated. A latent is on every rank."""
        if self.latent_dim is not None:
            return self
        heads = max(1, self.num_kv_heads // size)
        return KVLayerSpec(num_kv_heads=heads, head_dim=self.head_dim, window=self.window)

    @property
    def elements_per_token(self) -> int:
        return self.latent_dim if self.latent_dim is not None else 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder-only language model."""

    architecture: str
    """The Hugging Face class name, as in `architectures`."""
    weight_layout: str
    """Which tensor names the checkpoint uses: a key of `trivium.models.registry`."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    activation: ActivationName
    norm_eps: float
    norm_offset: float = 0.0
    """Norms multiply by `norm_offset + weight`."""
    post_norms: bool = False
    """A norm after each attention and feed-forward block as well, before the residual addition."""
    tie_embeddings: bool = False
    embed_scale: float | None = None
    """Embeddings are multiplied by it, rounded to the model's dtype first."""
    final_softcap: float | None = None
    max_position_embeddings: int
    """Longest context the config declares, after rope scaling."""
    max_model_len: int
    """Longest sequence this spec is for; rope tables have this many positions."""
    torch_dtype: str | None = None
    """The checkpoint's dtype as the config names it."""
    quantization: QuantizationSpec | None = None
    """How the checkpoint's weights are quantized; None: they are plain."""

    num_extra_layers: int = 0
    """Layers for multi-token prediction that the checkpoint may hold after the others; not loaded."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, max_model_len: int | None = None) -> ModelSpec:
        """Read a Hugging Face `config.json`.

        `max_model_len` defaults to what the config declares. Raises `UnsupportedArchitecture`, or `ModelLoadError` naming the key that is
        missing, wrong or asks for something unsupported.
        """
        from trivium.arch.families import read_spec

        return read_spec(config, max_model_len=max_model_len)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def kv_layers(self) -> tuple[KVLayerSpec, ...]:
        return tuple(_kv_layer(layer.attention) for layer in self.layers)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Cache of one token over all layers, in bytes, for elements of `itemsize` bytes; one rank."""
        return itemsize * sum(layer.elements_per_token for layer in self.kv_layers)

    @property
    def num_params(self) -> int:
        """Parameters, counted from the shapes (norms and biases included)."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return embeddings + self.hidden_size + sum(self._layer_params(layer) for layer in self.layers)

    @property
    def num_active_params(self) -> int:
        """Parameters that one token uses: all, less the experts it isn't sent to."""
        idle = 0
        for layer in self.layers:
            if isinstance(layer.feed_forward, MoeSpec):
                moe = layer.feed_forward
                idle += 3 * self.hidden_size * moe.intermediate_size * (moe.num_experts - moe.routing.top_k)
        return self.num_params - idle

    def _layer_params(self, layer: LayerSpec) -> int:
        norms = self.hidden_size * (4 if self.post_norms else 2)
        return norms + _attention_params(layer.attention, self.hidden_size) + _feed_forward_params(layer.feed_forward, self.hidden_size)


def _kv_layer(attention: AttentionSpec | MlaSpec) -> KVLayerSpec:
    if isinstance(attention, MlaSpec):
        latent_dim = attention.kv_lora_rank + attention.rope_dim
        return KVLayerSpec(num_kv_heads=1, head_dim=latent_dim, latent_dim=latent_dim)
    return KVLayerSpec(num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim, window=attention.window)


def _attention_params(attention: AttentionSpec | MlaSpec, hidden: int) -> int:
    if isinstance(attention, MlaSpec):
        return _mla_params(attention, hidden)
    query, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    biases = (query + 2 * kv) * attention.qkv_bias + hidden * attention.output_bias
    return hidden * (2 * query + 2 * kv) + biases + 2 * attention.head_dim * attention.qk_norm


def _mla_params(mla: MlaSpec, hidden: int) -> int:
    query_rows = mla.num_heads * (mla.nope_dim + mla.rope_dim)
    rank = mla.q_lora_rank
    query = hidden * query_rows if rank is None else rank * (hidden + 1 + mla.bias + query_rows)
    latent = hidden * (mla.kv_lora_rank + mla.rope_dim) + mla.kv_lora_rank + (mla.kv_lora_rank + mla.rope_dim) * mla.bias
    expand = mla.kv_lora_rank * mla.num_heads * (mla.nope_dim + mla.value_dim)
    return query + latent + expand + hidden * (mla.num_heads * mla.value_dim + mla.bias)


def _feed_forward_params(feed_forward: FeedForwardSpec | MoeSpec, hidden: int) -> int:
    if isinstance(feed_forward, FeedForwardSpec):
        return 3 * hidden * feed_forward.intermediate_size + (2 * feed_forward.intermediate_size + hidden) * feed_forward.bias
    experts = 3 * hidden * (feed_forward.num_experts * feed_forward.intermediate_size + feed_forward.shared_intermediate_size)
    return experts + feed_forward.num_experts * (hidden + feed_forward.routing.correction_bias)

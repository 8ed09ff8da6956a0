"""Gemma 2 and 3: norms around each block, soft-caps, layers that alternate between a window and everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trivium.arch.quantization_config import read_quantization
from trivium.arch.reader import ConfigReader
from trivium.arch.reading import Reading
from trivium.arch.rope import RopeSource, RopeSpec
from trivium.arch.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec

GEMMA2_DEFAULTS: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3_DEFAULTS: dict[str, Any] = {
    **GEMMA2_DEFAULTS,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}


def _gemma_layers(
    reading: Reading, layer_types: tuple[str, ...], ropes: Mapping[str, RopeSpec], *, qk_norm: bool, softcap: float | None
) -> tuple[LayerSpec, ...]:
    config = reading.config
    config.refuse("use_bidirectional_attention", False)
    num_heads, num_kv_heads, head_dim = reading.heads()
    bias = config.flag("attention_bias", default=False)
    feed_forward = FeedForwardSpec(intermediate_size=config.integer("intermediate_size"))
    return tuple(
        LayerSpec(
            attention=AttentionSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=config.positive("query_pre_attn_scalar") ** -0.5,
                rope=ropes[kind],
                window=window,
                softcap=softcap,
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=qk_norm,
            ),
            feed_forward=feed_forward,
        )
        for kind, window in zip(layer_types, reading.windows(layer_types), strict=True)
    )


def _alternating(reading: Reading, period: int) -> tuple[str, ...]:
    """Every `period`-th layer sees everything."""
    return tuple("sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(reading.num_layers))


def read_gemma2(reading: Reading) -> ModelSpec:
    config = reading.config
    source = RopeSource.read(config)
    rope = source.resolve(reading.heads()[2], reading.max_model_len(source.declared_len))
    types = reading.layer_types() or _alternating(reading, 2)
    softcap = config.positive_or_none("attn_logit_softcapping")
    layers = _gemma_layers(reading, types, {"sliding_attention": rope, "full_attention": rope}, qk_norm=False, softcap=softcap)
    return _gemma_spec(reading, source.declared_len, layers, layout="gemma2")


def read_gemma3(reading: Reading) -> ModelSpec:
    config = reading.config
    declared = config.integer("max_position_embeddings")  # rope_scaling's factor is already in it
    max_len, head_dim = reading.max_model_len(declared), reading.heads()[2]
    local = RopeSource.read(config, layer_type="sliding_attention", default_theta=10_000.0, theta_key="rope_local_base_freq", use_scaling=False)
    glob = RopeSource.read(config, layer_type="full_attention", default_theta=1_000_000.0)
    ropes = {"sliding_attention": local.resolve(head_dim, max_len), "full_attention": glob.resolve(head_dim, max_len)}
    types = reading.layer_types() or _alternating(reading, config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6))
    # transformers computes no soft-cap of scores for Gemma 3 whatever `attn_logit_softcapping` says; real files say null.
    config.refuse("attn_logit_softcapping")
    return _gemma_spec(reading, declared, _gemma_layers(reading, types, ropes, qk_norm=True, softcap=None), layout="gemma3")


def _gemma_spec(reading: Reading, declared_len: int, layers: tuple[LayerSpec, ...], *, layout: str) -> ModelSpec:
    return reading.spec(
        declared_len,
        layers,
        layout=layout,
        activation=reading.activation("hidden_activation" if reading.config.has("hidden_activation") else "hidden_act"),
        norm_offset=1.0,
        post_norms=True,
        embed_scale=reading.hidden_size**0.5,
        final_softcap=reading.config.positive_or_none("final_logit_softcapping"),
    )


def read_gemma3_multimodal(reading: Reading) -> ModelSpec:
    """The language model of a vision checkpoint."""
    outer = reading.config
    config = ConfigReader({**GEMMA3_DEFAULTS, **outer.section("text_config").values()}, where=f"{outer.where}: text_config")
    spec = read_gemma3(Reading(config, reading.architecture, reading.requested_len))
    dtype = spec.torch_dtype or outer.text("dtype", default=outer.text("torch_dtype", default="")) or None
    return replace(spec, weight_layout="gemma3_multimodal", torch_dtype=dtype, quantization=read_quantization(outer))

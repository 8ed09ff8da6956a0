"""Llama and the families that follow its pattern, with or without experts."""

from __future__ import annotations

from trivium.arch.reading import Reading, dense_spec, read_routing
from trivium.arch.rope import RopeSource
from trivium.arch.spec import FeedForwardSpec, ModelSpec, MoeSpec


def read_llama(reading: Reading) -> ModelSpec:
    bias = reading.config.flag("attention_bias", default=False)
    return dense_spec(reading, qkv_bias=bias, output_bias=bias, mlp_bias=reading.config.flag("mlp_bias", default=False))


def read_mistral(reading: Reading) -> ModelSpec:
    return dense_spec(reading, windows=reading.windows(reading.layer_types()))


def _qwen_windows(reading: Reading) -> tuple[int | None, ...] | None:
    config = reading.config
    if not config.flag("use_sliding_window", default=False):
        return None
    types = reading.layer_types()
    if types is None:
        first = config.integer("max_window_layers", minimum=0)
        types = tuple("sliding_attention" if layer >= first else "full_attention" for layer in range(reading.num_layers))
    return reading.windows(types)


def read_qwen2(reading: Reading) -> ModelSpec:
    return dense_spec(reading, windows=_qwen_windows(reading), qkv_bias=True)


def read_qwen3(reading: Reading) -> ModelSpec:
    bias = reading.config.flag("attention_bias", default=False)
    return dense_spec(reading, windows=_qwen_windows(reading), qkv_bias=bias, output_bias=bias, qk_norm=True)


def read_phi3(reading: Reading) -> ModelSpec:
    # Phi-3's "yarn" and "su" have always meant longrope; its original context has a default of its own.
    source = RopeSource.read(reading.config, original_max_len=4096, aliases={"yarn": "longrope"})
    return dense_spec(reading, layout="phi3", windows=reading.windows(None), rope=source)


def read_mixtral(reading: Reading) -> ModelSpec:
    config = reading.config
    moe = MoeSpec(
        num_experts=config.integer("num_local_experts", "num_experts"),
        intermediate_size=config.integer("intermediate_size"),
        routing=read_routing(reading, config.integer("num_local_experts", "num_experts"), normalize=True),
    )
    return dense_spec(reading, layout="mixtral", windows=reading.windows(None), feed_forwards=(moe,) * reading.num_layers)


def read_qwen3_moe(reading: Reading) -> ModelSpec:
    config = reading.config
    num_experts = config.integer("num_experts", "num_local_experts", minimum=0)
    dense = FeedForwardSpec(intermediate_size=config.integer("intermediate_size"))
    step, dense_layers = config.integer("decoder_sparse_step"), config.integers("mlp_only_layers")
    feed_forwards: list[FeedForwardSpec | MoeSpec] = [dense] * reading.num_layers
    for layer in range(reading.num_layers):
        if num_experts and layer not in dense_layers and (layer + 1) % step == 0:
            routing = read_routing(reading, num_experts, normalize=config.flag("norm_topk_prob", default=False))
            size = config.integer("moe_intermediate_size")
            feed_forwards[layer] = MoeSpec(num_experts=num_experts, intermediate_size=size, routing=routing)
    bias = config.flag("attention_bias", default=False)
    windows = reading.windows(reading.layer_types()) if config.flag("use_sliding_window", default=False) else None
    return dense_spec(reading, layout="qwen3_moe", windows=windows, feed_forwards=tuple(feed_forwards), qkv_bias=bias, output_bias=bias, qk_norm=True)

"""DeepSeek-V2 and V3: latent attention, routed and shared experts."""

from __future__ import annotations

from trivium.arch.reading import Reading, read_routing
from trivium.arch.rope import RopeSource
from trivium.arch.spec import FeedForwardSpec, LayerSpec, MlaSpec, ModelSpec, MoeSpec


def _deepseek(reading: Reading, *, scoring: str, topk_method: str, interleaved: bool) -> ModelSpec:
    config = reading.config
    source = RopeSource.read(config)
    rope_dim, nope_dim = config.integer("qk_rope_head_dim"), config.integer("qk_nope_head_dim")
    attention = MlaSpec(
        num_heads=config.integer("num_attention_heads"),
        q_lora_rank=config.integer_or_none("q_lora_rank"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=config.integer("v_head_dim"),
        scale=(nope_dim + rope_dim) ** -0.5 * source.mscale_squared(),
        rope=source.resolve(rope_dim, reading.max_model_len(source.declared_len), interleaved=interleaved),
        bias=config.flag("attention_bias", default=False),
    )
    dense = FeedForwardSpec(intermediate_size=config.integer("intermediate_size"), bias=config.flag("mlp_bias", default=False))
    if dense.bias:
        raise config.error("mlp_bias", "is not supported.")
    moe = _deepseek_moe(reading, scoring=scoring, topk_method=topk_method) if config.has("n_routed_experts") else dense
    first, step = config.integer("first_k_dense_replace", minimum=0), config.integer("moe_layer_freq", default=1)
    layers = tuple(
        LayerSpec(attention=attention, feed_forward=moe if layer >= first and layer % step == 0 else dense) for layer in range(reading.num_layers)
    )
    extra = config.integer("num_nextn_predict_layers", "num_mtp_layers", default=0, minimum=0)
    return reading.spec(source.declared_len, layers, layout="deepseek", activation=reading.activation(), num_extra_layers=extra)


def _deepseek_moe(reading: Reading, *, scoring: str, topk_method: str) -> MoeSpec:
    config = reading.config
    num_experts, size = config.integer("n_routed_experts"), config.integer("moe_intermediate_size")
    method, score = config.text("topk_method", default=topk_method), config.text("scoring_func", default=scoring)
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise config.error("topk_method", "supported: greedy, group_limited_greedy, noaux_tc.")
    if score not in ("softmax", "sigmoid"):
        raise config.error("scoring_func", "supported: softmax, sigmoid.")
    normalize, scale = config.flag("norm_topk_prob", default=False), config.positive("routed_scaling_factor", default=1.0)
    if method != "noaux_tc" and normalize and config.integer("num_experts_per_tok") > 1:
        scale = 1.0  # DeepSeek-V2's own code scales only weights that it did not normalize
    groups = 1 if method == "greedy" else config.integer("n_group", default=1)
    top_groups = 1 if method == "greedy" else config.integer("topk_group", default=1)
    if num_experts % groups or top_groups > groups or (method == "noaux_tc" and num_experts // groups < 2):
        raise config.error("n_group", f"does not fit n_routed_experts ({num_experts}) and topk_group ({top_groups}).")
    routing = read_routing(
        reading,
        num_experts // groups * top_groups,
        scoring=score,
        normalize=normalize,
        scale=scale,
        num_groups=groups,
        top_groups=top_groups,
        group_score="top2_sum" if method == "noaux_tc" else "max",
        correction_bias=method == "noaux_tc",
        float32=True,
    )
    shared = size * config.integer("n_shared_experts", default=0, minimum=0)
    return MoeSpec(num_experts=num_experts, intermediate_size=size, routing=routing, shared_intermediate_size=shared)


def read_deepseek_v2(reading: Reading) -> ModelSpec:
    return _deepseek(reading, scoring="softmax", topk_method="greedy", interleaved=True)


def read_deepseek_v3(reading: Reading) -> ModelSpec:
    interleaved = reading.config.flag("rope_interleave", default=True)
    return _deepseek(reading, scoring="sigmoid", topk_method="noaux_tc", interleaved=interleaved)

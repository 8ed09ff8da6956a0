"""Published configurations: sizes, contexts and cache as their authors state them, and what each file's switches turn into."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from helpers_published_configs import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GEMMA_2_2B,
    GEMMA_3_4B,
    LLAMA_3_1_8B,
    MISTRAL_7B_V01,
    MIXTRAL_8X7B,
    PHI_3_5_MINI,
    PHI_4_MINI,
    PUBLISHED,
    QWEN2_5_0_5B,
    QWEN3_30B_A3B,
    SMOLLM2_135M,
)

from trivium.arch import AttentionSpec, FeedForwardSpec, MlaSpec, ModelSpec, MoeSpec


def attention_of(config: dict[str, Any], layer: int = 0, **options: Any) -> AttentionSpec:
    attention = ModelSpec.from_config(config, **options).layers[layer].attention
    assert isinstance(attention, AttentionSpec)
    return attention


@pytest.mark.parametrize(("name", "config", "num_params", "context", "kv_bytes"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_size_context_and_cache(name: str, config: dict[str, Any], num_params: int, context: int, kv_bytes: int) -> None:
    spec = ModelSpec.from_config(config)
    assert spec.num_params == num_params
    assert spec.max_position_embeddings == spec.max_model_len == context
    assert spec.kv_bytes_per_token(2) == kv_bytes
    assert spec.num_layers == len(spec.kv_layers)


@pytest.mark.parametrize(("name", "config"), [row[:2] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED])
def test_a_spec_is_hashable_and_reading_leaves_the_config_alone(name: str, config: dict[str, Any]) -> None:
    before = json.dumps(config)
    assert hash(ModelSpec.from_config(config)) == hash(ModelSpec.from_config(json.loads(before)))
    assert json.dumps(config) == before


def test_active_parameters_of_experts() -> None:
    assert ModelSpec.from_config(MIXTRAL_8X7B).num_active_params == pytest.approx(12.9e9, rel=0.01)
    assert ModelSpec.from_config(QWEN3_30B_A3B).num_active_params == pytest.approx(3.3e9, rel=0.02)
    assert ModelSpec.from_config(DEEPSEEK_V3).num_active_params == pytest.approx(37e9, rel=0.02)
    assert ModelSpec.from_config(SMOLLM2_135M).num_active_params == ModelSpec.from_config(SMOLLM2_135M).num_params


def test_llama_3_1() -> None:
    rope = attention_of(LLAMA_3_1_8B).rope
    assert (rope.kind, rope.factor, rope.low_freq_factor, rope.high_freq_factor) == ("llama3", 8.0, 1.0, 4.0)
    assert (rope.original_max_len, rope.theta, rope.rotary_dim) == (8192, 500000.0, 128)


def test_mistral_has_its_window_in_every_layer() -> None:
    assert {layer.window for layer in ModelSpec.from_config(MISTRAL_7B_V01).kv_layers} == {4096}
    assert {layer.window for layer in ModelSpec.from_config({**MISTRAL_7B_V01, "sliding_window": None}).kv_layers} == {None}


def test_qwen2_window_needs_its_switch() -> None:
    assert {layer.window for layer in ModelSpec.from_config(QWEN2_5_0_5B).kv_layers} == {None}
    on = ModelSpec.from_config({**QWEN2_5_0_5B, "use_sliding_window": True, "sliding_window": 100})
    assert [layer.window for layer in on.kv_layers] == [None] * 21 + [100] * 3
    assert attention_of(QWEN2_5_0_5B).qkv_bias
    assert not attention_of(QWEN2_5_0_5B).output_bias


def test_layer_types_win_over_max_window_layers() -> None:
    types = ["sliding_attention", "full_attention"] * 12
    spec = ModelSpec.from_config({**QWEN2_5_0_5B, "use_sliding_window": True, "sliding_window": 100, "layer_types": types})
    assert [layer.window for layer in spec.kv_layers] == [100, None] * 12


def test_gemma_2() -> None:
    spec = ModelSpec.from_config(GEMMA_2_2B)
    assert [layer.window for layer in spec.kv_layers[:4]] == [4096, None, 4096, None]
    assert (spec.final_softcap, spec.norm_offset, spec.post_norms, spec.tie_embeddings) == (30.0, 1.0, True, True)
    assert spec.embed_scale == math.sqrt(2304)
    assert spec.activation == "gelu_tanh"
    attention = attention_of(GEMMA_2_2B)
    assert (attention.softcap, attention.scale, attention.qk_norm) == (50.0, 1 / 16, False)


def test_an_explicit_null_switches_a_soft_cap_off_and_an_absent_key_means_the_class_default() -> None:
    off = ModelSpec.from_config({**GEMMA_2_2B, "final_logit_softcapping": None, "attn_logit_softcapping": None})
    assert off.final_softcap is None
    absent = {key: value for key, value in GEMMA_2_2B.items() if "softcapping" not in key}
    assert ModelSpec.from_config(absent).final_softcap == 30.0
    assert attention_of(absent).softcap == 50.0


def test_gemma_3_reads_the_text_part_with_its_class_defaults() -> None:
    spec = ModelSpec.from_config(GEMMA_3_4B)
    assert [layer.window for layer in spec.kv_layers[:7]] == [1024] * 5 + [None, 1024]
    local, everywhere = attention_of(GEMMA_3_4B, 0), attention_of(GEMMA_3_4B, 5)
    assert (local.rope.kind, local.rope.theta) == ("default", 10_000.0)
    assert (everywhere.rope.kind, everywhere.rope.theta, everywhere.rope.factor) == ("linear", 1_000_000.0, 8.0)
    assert local.qk_norm
    assert spec.torch_dtype == "bfloat16"
    assert spec.final_softcap is None


def test_phi_3_long_and_short_factors_follow_max_model_len() -> None:
    long, short = attention_of(PHI_3_5_MINI).rope, attention_of(PHI_3_5_MINI, max_model_len=4096).rope
    assert long.divisors[:2] == (1.0, 2.0)
    assert short.divisors == (1.0,) * 48
    assert attention_of(PHI_3_5_MINI, max_model_len=4097).rope == long
    # sqrt(1 + ln(32) / ln(4096)), whichever factors are used
    assert long.attention_factor == short.attention_factor == pytest.approx(1.190238)


def test_phi_4_mini_turns_three_quarters_of_each_head() -> None:
    assert attention_of(PHI_4_MINI).rope.rotary_dim == 96
    assert attention_of(PHI_4_MINI).head_dim == 128


def test_deepseek_v3() -> None:
    spec = ModelSpec.from_config(DEEPSEEK_V3)
    attention = spec.layers[0].attention
    assert isinstance(attention, MlaSpec)
    # mscale equals mscale_all_dim: none in the tables, (0.1 ln 40 + 1)^2 in the scale
    assert attention.rope.attention_factor == 1.0
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert attention.rope.interleaved
    assert [isinstance(layer.feed_forward, MoeSpec) for layer in spec.layers[:5]] == [False, False, False, True, True]
    moe = spec.layers[-1].feed_forward
    assert isinstance(moe, MoeSpec)
    assert (moe.num_experts, moe.shared_intermediate_size) == (256, 2048)
    routing = moe.routing
    assert (routing.scoring, routing.group_score, routing.correction_bias, routing.scale) == ("sigmoid", "top2_sum", True, 2.5)
    assert (routing.num_groups, routing.top_groups, routing.top_k, routing.normalize) == (8, 4, 8, True)
    assert spec.quantization is not None and (spec.quantization.method, spec.num_extra_layers) == ("fp8", 1)


def test_deepseek_without_scaling_has_the_plain_scale() -> None:
    attention = ModelSpec.from_config({**DEEPSEEK_V3, "rope_scaling": None}).layers[0].attention
    assert attention.scale == 192**-0.5


def test_deepseek_v2_lite() -> None:
    moe = ModelSpec.from_config(DEEPSEEK_V2_LITE).layers[1].feed_forward
    assert isinstance(moe, MoeSpec)
    assert (moe.routing.scoring, moe.routing.num_groups, moe.routing.correction_bias, moe.routing.normalize) == ("softmax", 1, False, False)


def test_deepseek_moe_layer_freq() -> None:
    spec = ModelSpec.from_config({**DEEPSEEK_V2_LITE, "moe_layer_freq": 2})
    assert [isinstance(layer.feed_forward, FeedForwardSpec) for layer in spec.layers[:6]] == [True, True, False, True, False, True]


def test_deepseek_v2_scales_only_weights_that_are_not_normalized() -> None:
    for normalize, scale in ((False, 16.0), (True, 1.0)):
        config = {**DEEPSEEK_V2_LITE, "norm_topk_prob": normalize, "routed_scaling_factor": 16.0}
        moe = ModelSpec.from_config(config).layers[1].feed_forward
        assert isinstance(moe, MoeSpec)
        assert (moe.routing.normalize, moe.routing.scale) == (normalize, scale)


def test_qwen3_moe_dense_layers() -> None:
    spec = ModelSpec.from_config({**QWEN3_30B_A3B, "mlp_only_layers": [0], "decoder_sparse_step": 2})
    assert [isinstance(layer.feed_forward, MoeSpec) for layer in spec.layers[:4]] == [False, True, False, True]


def test_a_rank_keeps_its_heads_and_repeats_what_it_must() -> None:
    layer = ModelSpec.from_config(QWEN2_5_0_5B).kv_layers[0]
    assert [layer.shard(size).num_kv_heads for size in (1, 2, 4, 8)] == [2, 1, 1, 1]
    latent = ModelSpec.from_config(DEEPSEEK_V3).kv_layers[0]
    assert latent.shard(8) == latent
    assert latent.latent_dim == latent.elements_per_token == 576

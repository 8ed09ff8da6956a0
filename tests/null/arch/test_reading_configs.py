"""What is wrong with a config is named: architecture, key, value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers_published_configs import (
    DEEPSEEK_V3,
    GEMMA_2_2B,
    GEMMA_3_4B,
    LLAMA_2_7B,
    LLAMA_3_1_8B,
    MIXTRAL_8X7B,
    PHI_3_5_MINI,
    PHI_4_MINI,
    QWEN2_5_0_5B,
)

from trivium.arch import AttentionSpec, ModelSpec, RopeSpec
from trivium.arch.families import FAMILIES
from trivium.errors import ConfigError, ModelLoadError, UnsupportedArchitecture


def rope_of(config: dict[str, Any], layer: int = 0, **options: Any) -> RopeSpec:
    attention = ModelSpec.from_config(config, **options).layers[layer].attention
    assert isinstance(attention, AttentionSpec)
    return attention.rope


def scaled(**scaling: Any) -> dict[str, Any]:
    return {**LLAMA_2_7B, "rope_scaling": scaling}


@pytest.mark.parametrize("architectures", [["BertModel"], ["bertmodel"], []])
def test_an_unknown_architecture_lists_those_supported(architectures: list[str]) -> None:
    with pytest.raises(UnsupportedArchitecture) as error:
        ModelSpec.from_config({**LLAMA_2_7B, "architectures": architectures})
    assert all(name in str(error.value) for name in [*architectures, *FAMILIES])


def test_a_config_without_architectures_says_so() -> None:
    with pytest.raises(ModelLoadError, match="architectures is missing"):
        ModelSpec.from_config({"hidden_size": 8})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number, got '4096'"),
        ({"hidden_size": True}, "hidden_size must be a whole number, got True"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"hidden_size": 4097}, "hidden_size = 4097"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers must be a whole number, got 2.5"),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be positive"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2'"),
        ({"hidden_act": 3}, "hidden_act must be a string"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of strings"),
        ({"quantization_config": 4}, "quantization_config must be an object"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        ModelSpec.from_config({**LLAMA_2_7B, **changes})
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**QWEN2_5_0_5B, "use_sliding_window": True, "layer_types": ["full_attention"] * 3}, "layer_types"),
        ({**QWEN2_5_0_5B, "use_sliding_window": True, "layer_types": ["linear_attention"] * 24}, "'linear_attention' is not supported"),
        ({**GEMMA_2_2B, "use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({**GEMMA_3_4B, "text_config": {**GEMMA_3_4B["text_config"], "attn_logit_softcapping": 50.0}}, "attn_logit_softcapping = 50.0"),
        ({**GEMMA_3_4B, "text_config": {**GEMMA_3_4B["text_config"], "hidden_size": "x"}}, "text_config: hidden_size"),
        ({**MIXTRAL_8X7B, "num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ({**DEEPSEEK_V3, "topk_method": "random"}, "topk_method = 'random'"),
        ({**DEEPSEEK_V3, "scoring_func": "tanh"}, "scoring_func = 'tanh'"),
        ({**DEEPSEEK_V3, "n_group": 7}, "n_group = 7"),
        ({**DEEPSEEK_V3, "topk_group": 9}, "topk_group (9)"),
        ({**DEEPSEEK_V3, "n_group": 256, "topk_group": 8}, "n_group = 256"),
        ({**DEEPSEEK_V3, "mlp_bias": True}, "mlp_bias = True"),
        ({**PHI_3_5_MINI, "rope_scaling": {**PHI_3_5_MINI["rope_scaling"], "long_factor": [1.0]}}, "long_factor"),
        ({**PHI_4_MINI, "partial_rotary_factor": 1.5}, "rotary dimension 192"),
        ({**PHI_4_MINI, "partial_rotary_factor": 0.01}, "rotary dimension 1"),
    ],
)
def test_a_value_that_a_family_cannot_honour_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        ModelSpec.from_config(config)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "proportional"}, "rope_type 'proportional'"),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, "'mrope_section' is not supported"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": -1.0}, "factor must be positive"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "high_freq_factor = 1.0"),
        ({"rope_type": "longrope", "short_factor": 1.0, "long_factor": 2.0}, "must be a list of numbers"),
        ({"rope_type": 3}, "rope_type must be a string"),
    ],
)
def test_a_rope_scaling_that_is_not_understood_is_named(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        ModelSpec.from_config(scaled(**scaling))
    assert named in str(error.value)


@pytest.mark.parametrize("length", [0, -1, 4097])
def test_max_model_len_stays_within_what_the_model_declares(length: int) -> None:
    with pytest.raises(ConfigError) as error:
        ModelSpec.from_config(LLAMA_2_7B, max_model_len=length)
    assert error.value.param == "max_model_len"
    assert "1..4096" in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "declared"),
    [
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"type": "dynamic", "factor": 2.0}, 8192),
        ({"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048}, 16384),
        ({"type": "yarn", "factor": 4.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"type": "su", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64, "original_max_position_embeddings": 1024}, 4096),
        ({"type": "default"}, 4096),
    ],
)
def test_declared_context_after_scaling(scaling: dict[str, Any], declared: int) -> None:
    assert ModelSpec.from_config(scaled(**scaling)).max_position_embeddings == declared


def test_both_forms_of_rope_parameters_mean_the_same() -> None:
    older = rope_of(LLAMA_3_1_8B)
    config = {key: value for key, value in LLAMA_3_1_8B.items() if key not in ("rope_scaling", "rope_theta")}
    assert rope_of({**config, "rope_parameters": {**LLAMA_3_1_8B["rope_scaling"], "rope_theta": 500000.0}}) == older
    assert rope_of({**LLAMA_3_1_8B, "rope_scaling": {**LLAMA_3_1_8B["rope_scaling"], "type": "ignored"}}) == older


def test_rope_parameters_may_differ_by_layer_type() -> None:
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    text = {key: value for key, value in GEMMA_3_4B["text_config"].items() if key != "rope_scaling"}
    newer = {**GEMMA_3_4B, "text_config": {**text, "rope_parameters": parameters}}
    assert ModelSpec.from_config(newer) == ModelSpec.from_config(GEMMA_3_4B)


def test_linear_scaling_divides_every_frequency() -> None:
    rope = rope_of(scaled(type="linear", factor=4.0))
    assert (rope.kind, rope.factor, rope.theta) == ("linear", 4.0, 10_000.0)


def test_rope_theta_has_a_default_per_family() -> None:
    assert rope_of(LLAMA_2_7B).theta == 10_000.0
    assert rope_of({key: value for key, value in MIXTRAL_8X7B.items() if key != "rope_theta"}).theta == 1_000_000.0


def test_dynamic_ntk_is_fixed_by_max_model_len() -> None:
    config = scaled(type="dynamic", factor=2.0)
    assert rope_of(config, max_model_len=4096).theta == 10_000.0
    assert rope_of(config, max_model_len=100).theta == 10_000.0
    assert rope_of(config, max_model_len=8192).theta == pytest.approx(10_000.0 * 3 ** (128 / 126))
    assert rope_of(config) == rope_of(config, max_model_len=8192)


def test_yarn_attention_factor() -> None:
    def factor(**scaling: Any) -> float:
        return rope_of(scaled(type="yarn", factor=4.0, original_max_position_embeddings=4096, **scaling)).attention_factor

    assert factor() == pytest.approx(0.1 * math.log(4) + 1)
    assert factor(attention_factor=0.5) == 0.5
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(mscale=2.0, mscale_all_dim=1.0) == pytest.approx((0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


def test_yarn_without_a_factor_takes_the_ratio_of_contexts() -> None:
    config = {**LLAMA_2_7B, "max_position_embeddings": 16384, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 4096}}
    assert rope_of(config).factor == 4.0
    assert ModelSpec.from_config(config).max_position_embeddings == 16384


def test_longrope_mscales_of_a_file_win() -> None:
    scaling = {**PHI_3_5_MINI["rope_scaling"], "short_mscale": 1.1, "long_mscale": 1.3}
    assert rope_of({**PHI_3_5_MINI, "rope_scaling": scaling}).attention_factor == 1.3
    assert rope_of({**PHI_3_5_MINI, "rope_scaling": scaling}, max_model_len=4096).attention_factor == 1.1


def test_longrope_without_stretch_keeps_the_attention_factor_at_one() -> None:
    config = {**PHI_3_5_MINI, "max_position_embeddings": 4096}
    assert rope_of(config).attention_factor == 1.0


def test_an_original_length_at_the_top_level_wins() -> None:
    config = {**LLAMA_3_1_8B, "original_max_position_embeddings": 2048}
    assert rope_of(config).original_max_len == 2048


@pytest.mark.parametrize(("name", "expected"), [("torch_dtype", "float16"), ("dtype", "bfloat16")])
def test_dtype_under_either_name(name: str, expected: str) -> None:
    config = {key: value for key, value in LLAMA_2_7B.items() if key != "torch_dtype"}
    assert ModelSpec.from_config(config).torch_dtype is None
    assert ModelSpec.from_config({**config, name: expected}).torch_dtype == expected


def test_a_quantized_checkpoint_is_recognized() -> None:
    spec = ModelSpec.from_config({**LLAMA_2_7B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}).quantization
    assert spec is not None and spec.method == "awq"
    assert ModelSpec.from_config(LLAMA_2_7B).quantization is None


def test_whole_numbers_written_as_floats_are_accepted() -> None:
    assert ModelSpec.from_config({**LLAMA_2_7B, "vocab_size": 32000.0}).vocab_size == 32000

"""GGUF metadata as a config.json, per architecture, and read by `ModelSpec`."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_gguf import TensorSpec, f32_tensor, llama_metadata, write_gguf

from trivium.arch import ModelSpec
from trivium.errors import ModelLoadError, UnsupportedArchitecture
from trivium.sources import resolve
from trivium.sources.gguf_config import llama3_factors


def config(tmp_path, metadata: dict[str, Any], tensors: list[TensorSpec] | None = None) -> dict[str, Any]:
    return resolve(str(write_gguf(tmp_path / "m.gguf", metadata, tensors))).config


def other(arch: str, **changes: Any) -> dict[str, Any]:
    base = {key.replace("llama.", f"{arch}.", 1): value for key, value in llama_metadata().items()}
    base["general.architecture"] = arch
    return base | {f"{arch}.{key}".replace("__", "."): value for key, value in changes.items()}


OUTPUT = f32_tensor("output.weight", (1, 1), [0.0])


def test_llama(tmp_path):
    found = config(tmp_path, llama_metadata())
    assert found["architectures"] == ["LlamaForCausalLM"]
    expected = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "vocab_size": 40,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: found[key] for key in expected} == expected
    assert "rope_scaling" not in found


def test_an_output_head_means_that_embeddings_are_not_tied(tmp_path):
    assert config(tmp_path, llama_metadata(), [OUTPUT])["tie_word_embeddings"] is False


def test_what_metadata_leaves_out_has_ggufs_defaults(tmp_path):
    left_out = {"llama.attention.head_count_kv": None, "llama.rope.freq_base": None, "llama.vocab_size": None}
    metadata = {key: value for key, value in llama_metadata().items() if key not in left_out} | {"tokenizer.ggml.tokens": ["a", "b"]}
    found = config(tmp_path, metadata)
    assert (found["num_key_value_heads"], found["rope_theta"], found["vocab_size"]) == (4, 10000.0, 2)


def test_partial_rotary_and_wide_heads(tmp_path):
    found = config(tmp_path, llama_metadata() | {"llama.attention.key_length": 32, "llama.rope.dimension_count": 16})
    assert (found["head_dim"], found["partial_rotary_factor"]) == (32, 0.5)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "linear", "factor": 1.0}, None),
        ({"type": "none"}, None),
        ({"type": "yarn", "factor": 8.0}, {"rope_type": "yarn", "factor": 8.0}),
        (
            {"type": "yarn", "factor": 8.0, "original_context_length": 64},
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling_of_the_metadata(tmp_path, scaling, expected):
    found = config(tmp_path, llama_metadata() | {f"llama.rope.scaling.{key}": value for key, value in scaling.items()})
    assert found.get("rope_scaling") == expected


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    metadata = llama_metadata() | {"llama.rope.freq_base": 500000.0, "llama.attention.key_length": 128}
    factors = llama3_factors(500000.0, 64, scaling)
    assert (min(factors), max(factors)) == (1.0, 8.0)
    found = config(tmp_path, metadata, [f32_tensor("rope_freqs.weight", (64,), factors)])
    assert found["rope_scaling"] == scaling


def test_other_factors_are_passed_on_one_by_one(tmp_path):
    factors = [1.0, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0, 6.0]
    found = config(tmp_path, llama_metadata(), [f32_tensor("rope_freqs.weight", (8,), factors)])
    rope = ModelSpec.from_config(found, max_model_len=None).layers[0].attention.rope
    assert (rope.kind, rope.divisors, rope.attention_factor) == ("longrope", tuple(factors), 1.0)


def test_factors_must_be_float32(tmp_path):
    with pytest.raises(ModelLoadError, match="rope_freqs.weight is F16, expected F32"):
        config(tmp_path, llama_metadata(), [TensorSpec("rope_freqs.weight", (8,), 1, bytes(16))])


@pytest.mark.parametrize("factors", [[], [0.0] * 8, [float("nan")] * 8, [1.0, -1.0], [float("inf")] * 8])
def test_factors_must_be_positive(tmp_path, factors):
    with pytest.raises(ModelLoadError, match="rope_freqs.weight has factors that are not positive"):
        config(tmp_path, llama_metadata(), [f32_tensor("rope_freqs.weight", (len(factors),), factors)])


def test_mixtral_is_a_llama_with_experts(tmp_path):
    found = config(tmp_path, llama_metadata() | {"llama.expert_count": 4, "llama.expert_used_count": 2})
    assert found["architectures"] == ["MixtralForCausalLM"]
    assert (found["num_local_experts"], found["num_experts_per_tok"]) == (4, 2)


def test_qwen3_moe(tmp_path):
    found = config(tmp_path, other("qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=48))
    assert (found["num_experts"], found["num_experts_per_tok"], found["moe_intermediate_size"]) == (8, 2, 48)


def test_gemma2_alternates_windows_and_caps_logits(tmp_path):
    changes = {"attention__sliding_window": 32, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention__key_length": 32}
    found = config(tmp_path, other("gemma2", **changes))
    assert found["layer_types"] == ["sliding_attention", "full_attention"]
    assert (found["attn_logit_softcapping"], found["final_logit_softcapping"], found["query_pre_attn_scalar"]) == (50.0, 30.0, 32)
    large = config(tmp_path, other("gemma2", **changes, block_count=46))
    assert large["query_pre_attn_scalar"] == 16


def test_gemma3_has_a_global_layer_in_six_and_two_bases(tmp_path):
    found = config(tmp_path, other("gemma3", attention__sliding_window=32, block_count=7, rope__freq_base=1000000.0))
    assert [kind == "full_attention" for kind in found["layer_types"]] == [False] * 5 + [True, False]
    assert (found["rope_theta"], found["rope_local_base_freq"]) == (1000000.0, 10000.0)


def test_phi3_carries_its_long_and_short_factors(tmp_path):
    tensors = [f32_tensor("rope_factors_long.weight", (8,), [4.0] * 8), f32_tensor("rope_factors_short.weight", (8,), [1.0] * 8)]
    metadata = other("phi3", rope__scaling__original_context_length=64, rope__scaling__attn_factor=1.25, attention__sliding_window=32)
    found = config(tmp_path, metadata, tensors)
    assert found["rope_scaling"] == {"rope_type": "longrope", "long_factor": [4.0] * 8, "short_factor": [1.0] * 8, "attention_factor": 1.25}
    assert found["sliding_window"] == 32
    rope = ModelSpec.from_config(found, max_model_len=128).layers[0].attention.rope
    assert (rope.divisors, rope.attention_factor) == ((4.0,) * 8, 1.25)
    assert "rope_scaling" not in config(tmp_path, other("phi3"))


WINDOW = {"attention__sliding_window": 32}
ALL: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"expert_count": 4, "expert_used_count": 2}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("qwen3moe", {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48}),
    ("gemma2", {**WINDOW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    ("gemma3", WINDOW),
    ("phi3", {}),
]


@pytest.mark.parametrize(("arch", "changes"), ALL)
def test_model_spec_reads_the_config_of_every_architecture(tmp_path, arch, changes):
    found = config(tmp_path, other(arch, **changes))
    spec = ModelSpec.from_config(found, max_model_len=None)
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers, spec.max_model_len) == (40, 64, 2, 128)
    assert spec.tie_embeddings is True


def test_an_architecture_without_a_mapping_lists_those_that_have_one(tmp_path):
    with pytest.raises(UnsupportedArchitecture, match="'mamba' is not supported. Supported: gemma2, gemma3, llama, phi3, qwen2, qwen3, qwen3moe"):
        config(tmp_path, {"general.architecture": "mamba"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.block_count": None}, "no metadata 'llama.block_count'"),
        ({"llama.embedding_length": "64"}, "'llama.embedding_length' is a str, expected int"),
        ({"llama.attention.head_count": 0}, "head_count is 0; 1 to 64 is possible"),
        ({"llama.attention.head_count": 65}, "head_count is 65; 1 to 64 is possible"),
        ({"llama.rope.freq_base": 0.0}, "freq_base is 0.0; it must be positive"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": ("f64", 1e300)}, "epsilon is 1e"),
        ({"llama.block_count": 2**31 - 1}, "block_count is 2147483647; 1 to 10000 is possible"),
        ({"llama.attention.key_length": -1}, "key_length is -1; 0 to 2147483647 is possible"),
        ({"llama.context_length": ("u64", 2**63)}, "context_length is 9223372036854775808"),
        ({"llama.attention.head_count": ("u32", [4, 4])}, "head_count' is a list, expected int"),
        ({"llama.vocab_size": None}, "no metadata 'tokenizer.ggml.tokens'"),
        ({"general.architecture": None}, "no metadata 'general.architecture'"),
    ],
)
def test_metadata_that_is_missing_or_of_another_type_is_named(tmp_path, change, message):
    metadata = {key: value for key, value in (llama_metadata() | change).items() if value is not None}
    with pytest.raises(ModelLoadError, match=message):
        config(tmp_path, metadata)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, {}), ({"tokenizer.ggml.eot_token_id": 2}, {}), ({"tokenizer.ggml.eot_token_id": 5}, {"eos_token_id": [2, 5]})],
)
def test_a_turns_own_end_token_ends_generation_too(tmp_path, extra, expected):
    path = write_gguf(tmp_path / "m.gguf", llama_metadata() | extra)
    assert resolve(str(path)).generation_config == expected

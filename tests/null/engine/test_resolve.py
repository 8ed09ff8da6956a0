"""From what was asked for and what was found to what will run."""

from __future__ import annotations

from typing import Any

import pytest

from trivium.arch import ModelSpec
from trivium.config_io import build_engine_config
from trivium.engine.resolve import GIB, DeviceInfo, ResolvedConfig, resolve
from trivium.errors import ConfigError

CPU = DeviceInfo(type="cpu", name="this CPU", total_memory=16 * GIB, free_memory=8 * GIB, has_bf16=True, num_cores=2)
SMALL_GPU = DeviceInfo(type="cuda", name="a GPU", total_memory=24 * GIB, free_memory=23 * GIB, has_bf16=True)
LARGE_GPU = DeviceInfo(type="cuda", name="a large GPU", total_memory=140 * GIB, free_memory=139 * GIB, has_bf16=True, has_fp8=True)
OLD_GPU = DeviceInfo(type="cuda", name="an old GPU", total_memory=16 * GIB, free_memory=16 * GIB, has_bf16=False)
OLD_CPU = DeviceInfo(type="cpu", name="this CPU", total_memory=16 * GIB, free_memory=8 * GIB, has_bf16=False)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def resolved(device: DeviceInfo, *, torch_dtype: str | None = None, is_gguf: bool = False, **args: Any) -> ResolvedConfig:
    config = build_engine_config(**args)
    spec = ModelSpec.from_config({**CONFIG, "torch_dtype": torch_dtype}, max_model_len=config.model.max_model_len)
    return resolve(config, spec, device, is_gguf=is_gguf)


@pytest.mark.parametrize(("device", "seqs", "tokens"), [(CPU, 64, 512), (SMALL_GPU, 256, 2048), (LARGE_GPU, 1024, 8192)])
def test_limits_follow_the_device_and_say_so(device: DeviceInfo, seqs: int, tokens: int) -> None:
    found = resolved(device)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)
    assert any(device.name in note for note in found.notes)


def test_a_dtype_that_torch_would_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="evil"):
        resolved(CPU, torch_dtype="evil")


def test_cached_keys_and_values_have_the_models_type_or_fp8_where_the_device_has_it() -> None:
    assert resolved(LARGE_GPU, torch_dtype="bfloat16").cache_dtype == "bfloat16"
    assert resolved(LARGE_GPU, torch_dtype="bfloat16", kv_cache_dtype="fp8").cache_dtype == "float8_e4m3fn"
    for device in (CPU, SMALL_GPU):
        with pytest.raises(ConfigError, match="kv_cache_dtype fp8 needs a GPU") as refused:
            resolved(device, kv_cache_dtype="fp8")
        assert refused.value.param == "kv_cache_dtype"


def test_what_was_asked_for_stays_and_the_budget_holds_every_sequence() -> None:
    found = resolved(CPU, max_num_seqs=700, max_model_len=99, block_size=32, num_threads=1)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (700, 700)
    assert (found.max_model_len, found.max_blocks_per_seq, found.num_threads) == (99, 4, 1)


@pytest.mark.parametrize(
    ("device", "torch_dtype", "is_gguf", "expected"),
    [
        (CPU, "bfloat16", False, "bfloat16"),
        (CPU, "float32", False, "float32"),
        (CPU, "float32", True, "bfloat16"),
        (OLD_CPU, "float32", True, "float32"),
        (CPU, "float16", False, "bfloat16"),
        (OLD_CPU, "float16", False, "float32"),
        (OLD_GPU, "float16", False, "float16"),
        (CPU, None, False, "float32"),
    ],
)
def test_dtype_auto(device: DeviceInfo, torch_dtype: str | None, is_gguf: bool, expected: str) -> None:
    assert resolved(device, torch_dtype=torch_dtype, is_gguf=is_gguf).dtype == expected


@pytest.mark.parametrize(
    ("args", "param"),
    [
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens"),
        ({"max_model_len": 1001}, "max_model_len"),
    ],
)
def test_what_can_not_go_together_is_refused_by_name(args: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolved(CPU, **args)
    assert refused.value.param == param

"""From `config.json` to `ModelSpec`, one function per family.

A key that a file leaves out has the value that transformers' configuration class gives it: files are saved without keys at their defaults
in some releases. Those defaults stand in `FAMILIES`; keys without one are required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.arch.deepseek import read_deepseek_v2, read_deepseek_v3
from trivium.arch.dense import read_llama, read_mistral, read_mixtral, read_phi3, read_qwen2, read_qwen3, read_qwen3_moe
from trivium.arch.gemma import GEMMA2_DEFAULTS, GEMMA3_DEFAULTS, read_gemma2, read_gemma3, read_gemma3_multimodal
from trivium.arch.reader import ConfigReader
from trivium.arch.reading import Reading
from trivium.arch.spec import ModelSpec
from trivium.errors import UnsupportedArchitecture


@dataclass(frozen=True, slots=True)
class Family:
    read: Callable[[Reading], ModelSpec]
    defaults: Mapping[str, Any]


_COMMON: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
_QWEN: dict[str, Any] = {**_COMMON, "sliding_window": 4096, "max_window_layers": 28}
_DEEPSEEK: dict[str, Any] = {**_COMMON, "q_lora_rank": 1536}

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(read_llama, _COMMON),
    "MistralForCausalLM": Family(read_mistral, {**_COMMON, "num_key_value_heads": 8, "sliding_window": 4096}),
    "Qwen2ForCausalLM": Family(read_qwen2, _QWEN),
    "Qwen3ForCausalLM": Family(read_qwen3, {**_QWEN, "head_dim": 128}),
    "Gemma2ForCausalLM": Family(read_gemma2, GEMMA2_DEFAULTS),
    "Gemma3ForCausalLM": Family(read_gemma3, GEMMA3_DEFAULTS),
    "Gemma3ForConditionalGeneration": Family(read_gemma3_multimodal, {}),
    "Phi3ForCausalLM": Family(read_phi3, {"hidden_act": "silu", "rms_norm_eps": 1e-5}),
    "MixtralForCausalLM": Family(read_mixtral, {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8}),
    "Qwen3MoeForCausalLM": Family(read_qwen3_moe, {**_COMMON, "sliding_window": 4096, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "DeepseekV2ForCausalLM": Family(read_deepseek_v2, {**_DEEPSEEK, "first_k_dense_replace": 0, "n_shared_experts": 2}),
    "DeepseekV3ForCausalLM": Family(
        read_deepseek_v3,
        {
            **_DEEPSEEK,
            "first_k_dense_replace": 3,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "n_group": 8,
            "topk_group": 4,
        },
    ),
}
"""Architecture (a class name in `architectures`) to its reader and the defaults of transformers' configuration class."""


def read_spec(config: Mapping[str, Any], *, max_model_len: int | None) -> ModelSpec:
    """See `ModelSpec.from_config`."""
    names = ConfigReader(config).texts("architectures")
    supported = ", ".join(FAMILIES)
    if not names or names[0] not in FAMILIES:
        raise UnsupportedArchitecture(f"Architecture {names[0] if names else 'unknown'} is not supported; supported: {supported}.")
    family = FAMILIES[names[0]]
    return family.read(Reading(ConfigReader({**family.defaults, **config}), names[0], max_model_len))

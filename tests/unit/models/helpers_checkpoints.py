"""Tiny random checkpoints of every family, made by transformers, initialized so wide that every switch of the config matters."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VOCAB = 211
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MLA: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}


@dataclass(frozen=True)
class Case:
    """A transformers configuration: class name without `Config`, and its arguments."""

    name: str
    config_class: str
    arguments: dict[str, Any]
    max_model_len: int | None = None
    patch: dict[str, Any] = field(default_factory=dict)
    """Keys put into config.json afterwards, as real files have them and transformers doesn't."""


def _rope(theta: float = 10000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **parameters}}


_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}

CASES = [
    Case("llama", "Llama", {**SMALL, **_rope()}),
    Case("llama3", "Llama", {**SMALL, **_rope(5000.0, **LLAMA3), "tie_word_embeddings": True, "head_dim": 24}),
    Case("llama-mqa", "Llama", {**SMALL, **_rope(), "num_key_value_heads": 1}),
    Case("llama-bias", "Llama", {**SMALL, **_rope(), "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    Case("llama-linear", "Llama", {**SMALL, **_rope(rope_type="linear", factor=4.0)}),
    Case("llama-dynamic", "Llama", {**SMALL, **_rope(rope_type="dynamic", factor=3.0), "max_position_embeddings": 128}, max_model_len=300),
    Case("llama-yarn", "Llama", {**SMALL, **_rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64)}),
    Case("mistral", "Mistral", {**SMALL, **_rope(), "sliding_window": 37}),
    Case("qwen2", "Qwen2", {**SMALL, **_rope(), "use_sliding_window": True, "sliding_window": 29, "max_window_layers": 1}),
    Case("qwen2-full", "Qwen2", {**SMALL, **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128), "tie_word_embeddings": True}),
    Case("qwen3", "Qwen3", {**SMALL, **_rope(1e6), "head_dim": 24, "use_sliding_window": True, "sliding_window": 29, "max_window_layers": 2}),
    Case("qwen3-bias", "Qwen3", {**SMALL, **_rope(), "head_dim": 16, "attention_bias": True}),
    Case("gemma2", "Gemma2", {**SMALL, **_rope(), "head_dim": 24, "query_pre_attn_scalar": 17, "sliding_window": 23,
                              "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}),
    Case("gemma3", "Gemma3Text", {**SMALL, "head_dim": 24, "query_pre_attn_scalar": 17, "sliding_window": 23,
                                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                  "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                                                      "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    Case("phi3", "Phi3", {**SMALL, **_rope(), "sliding_window": 41}),
    Case("phi3-long", "Phi3", {**SMALL, **_rope(rope_type="longrope", partial_rotary_factor=0.75, **_FACTORS),
                               "original_max_position_embeddings": 64}),
    Case("phi3-short", "Phi3", {**SMALL, **_rope(rope_type="longrope", partial_rotary_factor=0.75, **_FACTORS),
                                "original_max_position_embeddings": 320}, max_model_len=320),
    Case("mixtral", "Mixtral", {**SMALL, **_rope(), "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 33}),
    Case("qwen3-moe", "Qwen3Moe", {**SMALL, **_rope(), "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
                                   "mlp_only_layers": [1], "norm_topk_prob": True}),
    Case("qwen3-moe-unnormed", "Qwen3Moe", {**SMALL, **_rope(), "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3,
                                            "moe_intermediate_size": 48, "decoder_sparse_step": 2, "norm_topk_prob": False}),
    Case("deepseek-v2", "DeepseekV2", {**MLA, **_rope(), "topk_method": "group_limited_greedy"}, patch={"scoring_func": "softmax"}),
    Case("deepseek-v2-lite", "DeepseekV2", {**MLA, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
         **_rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.707, mscale_all_dim=0.707)}),
    Case("deepseek-v3", "DeepseekV3", {**MLA, "norm_topk_prob": True,
         **_rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7)},
         patch={"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
    Case("deepseek-v3-halves", "DeepseekV3", {**MLA, **_rope(), "rope_interleave": False, "norm_topk_prob": False, "attention_bias": True}),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


GAINS = {"q_": 1.6, "k_": 1.6, "qkv": 1.6, "gate.weight": 1.6, "lm_head": 1.5}
"""Part of a parameter's name to how much wider than the inverse root of its input it is: sharp attention, decided routers."""


@dataclass
class Checkpoint:
    config: dict[str, Any]
    """As config.json has it."""
    tensors: dict[str, Tensor]
    reference: transformers.PreTrainedModel

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """transformers' logits at every position: [len(tokens), vocab]."""
        return self.reference(torch.tensor([tokens]), use_cache=False).logits[0].float()

    @torch.inference_mode()
    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


@functools.cache
def checkpoint(name: str) -> Checkpoint:
    """The checkpoint of a case, written by transformers and read back as files."""
    case = BY_NAME[name]
    config = getattr(transformers, f"{case.config_class}Config")(**case.arguments)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _initialize_wide(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = json.loads((Path(folder) / "config.json").read_text())
        tensors = load_file(Path(folder) / "model.safetensors")
    _pin_rope(model, case)
    return Checkpoint({**written, **case.patch}, tensors, model)


@torch.no_grad()
def _initialize_wide(model: transformers.PreTrainedModel) -> None:
    """Matrices keep the size of their input, biases and norm weights are far from 0 and 1, logits have a deviation above 1."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name or "embed_scale" in name:
            continue
        if "norm" in name:
            parameter.uniform_(0.5, 1.5, generator=generator)
        elif "e_score_correction_bias" in name:
            parameter.normal_(0.0, 0.3, generator=generator)
        elif "bias" in name or "embed_tokens" in name:
            parameter.normal_(0.0, 0.5, generator=generator)
        else:
            gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
            parameter.normal_(0.0, gain * parameter.shape[-1] ** -0.5, generator=generator)


def _pin_rope(model: transformers.PreTrainedModel, case: Case) -> None:
    """transformers changes these two with each prompt's length; we fix them by max_model_len, so fix them there, too."""
    rotary = model.model.rotary_emb
    rope_type = rotary.rope_type
    if rope_type in ("dynamic", "longrope"):
        max_model_len = case.max_model_len or model.config.max_position_embeddings
        inv_freq, _ = ROPE_INIT_FUNCTIONS[rope_type](model.config, seq_len=max_model_len)
        rotary.inv_freq = inv_freq
        rotary.rope_type = "default"

"""GGUF metadata → what the same model's config.json would say.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Tensors that only carry RoPE factors (`rope_freqs.weight`,
`rope_factors_long/short.weight`) become `rope_scaling` here, so the weights side skips them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.errors import ModelLoadError, UnsupportedArchitecture
from trivium.sources.gguf_file import GGUFFile

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

MAX_SIZE = (1 << 31) - 1
MAX_LAYERS = 10_000
MAX_FLOAT32 = float(np.finfo(np.float32).max)

Config = dict[str, Any]


@dataclass(frozen=True)
class _Keys:
    """Metadata of one file, by the names below its architecture's prefix."""

    gguf: GGUFFile
    arch: str

    def integer(self, key: str, default: int | None = None) -> int | None:
        value = self.gguf.integer(f"{self.arch}.{key}", default)
        return None if value is None else self._checked(key, value)

    def require(self, key: str, *, minimum: int = 0, maximum: int = MAX_SIZE) -> int:
        return self._checked(key, self.gguf.require_integer(f"{self.arch}.{key}"), minimum, maximum)

    def _checked(self, key: str, value: int, minimum: int = 0, maximum: int = MAX_SIZE) -> int:
        """Lists as long as some of these numbers are made from them."""
        if not minimum <= value <= maximum:
            raise ModelLoadError(f"{self.gguf.path}: {self.arch}.{key} is {value}; {minimum} to {maximum} is possible.")
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Metadata floats are float32: 1e-05 is meant where 9.999999747378752e-06 is stored."""
        value = self.gguf.number(f"{self.arch}.{key}", default)
        if value is None:
            return None
        if not abs(value) <= MAX_FLOAT32:
            raise ModelLoadError(f"{self.gguf.path}: {self.arch}.{key} is {value}.")
        return float(str(np.float32(value)))

    def positive(self, key: str, default: float) -> float:
        value = self.number(key, default) or 0.0
        if value <= 0.0:
            raise ModelLoadError(f"{self.gguf.path}: {self.arch}.{key} is {value}; it must be positive.")
        return value

    def text(self, key: str) -> str | None:
        return self.gguf.text(f"{self.arch}.{key}")


def model_config_from_gguf(gguf: GGUFFile, tensor_names: Collection[str]) -> Config:
    """A config.json-like dict. Raises `UnsupportedArchitecture` for architectures without a mapping here."""
    arch = gguf.require_text("general.architecture")
    builder = _BUILDERS.get(arch)
    if builder is None:
        supported = ", ".join(sorted(_BUILDERS))
        raise UnsupportedArchitecture(f"{gguf.path}: GGUF architecture {arch!r} is not supported. Supported: {supported}.")
    keys = _Keys(gguf, arch)
    config = _common(keys, tensor_names)
    builder(config, keys)
    return config


def generation_config_from_gguf(gguf: GGUFFile) -> Config:
    """End tokens: a chat model ends its turn with EOT where the base model ends the text with EOS."""
    ends = [gguf.integer(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(end for end in ends if end is not None))
    return {"eos_token_id": unique} if len(unique) > 1 else {}


def _common(keys: _Keys, tensor_names: Collection[str]) -> Config:
    hidden = keys.require("embedding_length", minimum=1)
    heads = keys.require("attention.head_count", minimum=1, maximum=hidden)
    vocab_size = keys.integer("vocab_size")
    config: Config = {
        "hidden_size": hidden,
        "intermediate_size": keys.require("feed_forward_length"),
        "num_hidden_layers": keys.require("block_count", minimum=1, maximum=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": keys.integer("attention.key_length") or hidden // heads,
        "max_position_embeddings": keys.require("context_length"),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
        "vocab_size": vocab_size or len(keys.gguf.require_array("tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "hidden_act": "silu",
        "bos_token_id": keys.gguf.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": keys.gguf.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": keys.gguf.integer("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }
    rotary_dim = keys.integer("rope.dimension_count")
    if rotary_dim is not None and rotary_dim != config["head_dim"]:
        config["partial_rotary_factor"] = rotary_dim / config["head_dim"]
    scaling = _rope_scaling(keys)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(keys: _Keys) -> Config | None:
    kind = keys.text("rope.scaling.type")
    factor = keys.number("rope.scaling.factor")
    original = keys.integer("rope.scaling.original_context_length")
    if kind == "yarn":
        scaling: Config = {"rope_type": "yarn", "factor": factor}
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        return scaling
    if kind == "linear" and factor not in (None, 1.0):
        return {"rope_type": "linear", "factor": factor}
    return None


def _llama(config: Config, keys: _Keys) -> None:
    if keys.integer("expert_count"):
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        config |= {"num_local_experts": keys.require("expert_count"), "num_experts_per_tok": keys.require("expert_used_count")}
    else:
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        config |= {"attention_bias": False, "mlp_bias": False}
    factors = _factors(keys, "rope_freqs.weight")
    if factors is not None:
        config["rope_scaling"] = _llama3_scaling(config, factors)


def _factors(keys: _Keys, name: str) -> list[float] | None:
    """Per-frequency divisors of RoPE's inverse frequencies, stored as an F32 tensor."""
    tensor = keys.gguf.tensors.get(name)
    if tensor is None:
        return None
    if tensor.type_name != "F32":
        raise ModelLoadError(f"{keys.gguf.path}: {name} is {tensor.type_name}, expected F32.")
    values = np.fromfile(keys.gguf.path, dtype="<f4", count=tensor.num_bytes // 4, offset=tensor.offset)
    if values.size == 0 or not np.all((values > 0) & np.isfinite(values)):
        raise ModelLoadError(f"{keys.gguf.path}: {name} has factors that are not positive.")
    return [float(value) for value in values]


def _llama3_scaling(config: Config, factors: list[float]) -> Config:
    """Llama 3.1's scaling, recovered from its factors; the parameters other than `factor` are the same in all its releases."""
    scaling: Config = {
        "rope_type": "llama3",
        "factor": max(factors),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama3_factors(config["rope_theta"], len(factors), scaling)
    if max(abs(ours / theirs - 1.0) for ours, theirs in zip(expected, factors, strict=True)) < 1e-3:
        return scaling
    length = config["max_position_embeddings"]
    plain: Config = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    return plain | {"original_max_position_embeddings": length}


def llama3_factors(theta: float, count: int, scaling: Config) -> list[float]:
    """Divisor of each of `count` inverse frequencies under `rope_type: llama3`."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    result: list[float] = []
    for i in range(count):
        turns = original / (2 * math.pi * theta ** (i / count))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        result.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return result


def _qwen2(config: Config, keys: _Keys) -> None:
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}


def _qwen3(config: Config, keys: _Keys) -> None:
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False, "attention_bias": False}


def _qwen3moe(config: Config, keys: _Keys) -> None:
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "use_sliding_window": False,
        "attention_bias": False,
        "num_experts": keys.require("expert_count"),
        "num_experts_per_tok": keys.require("expert_used_count"),
        "moe_intermediate_size": keys.require("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma2(config: Config, keys: _Keys) -> None:
    head_dim, layers = config["head_dim"], config["num_hidden_layers"]
    # The 27B model alone scales queries by the width per head; the metadata has no key for it.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 46 else head_dim
    config |= {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.require("attention.sliding_window"),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "attention_bias": False,
    }


def _gemma3(config: Config, keys: _Keys) -> None:
    head_dim, layers = config["head_dim"], config["num_hidden_layers"]
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else head_dim
    config |= {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.require("attention.sliding_window"),
        "rope_theta": keys.positive("rope.freq_base", 1000000.0),
        "rope_local_base_freq": keys.positive("rope.freq_base_swa", 10000.0),
        "layer_types": ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)],
        "attention_bias": False,
    }


def _phi3(config: Config, keys: _Keys) -> None:
    config |= {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": keys.integer("attention.sliding_window") or None}
    original = keys.integer("rope.scaling.original_context_length")
    if original is not None:
        config["original_max_position_embeddings"] = original
    long, short = _factors(keys, "rope_factors_long.weight"), _factors(keys, "rope_factors_short.weight")
    if long is not None and short is not None:
        scaling: Config = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        attention_factor = keys.number("rope.scaling.attn_factor")
        config["rope_scaling"] = scaling if attention_factor is None else scaling | {"attention_factor": attention_factor}


_BUILDERS: dict[str, Callable[[Config, _Keys], None]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
}

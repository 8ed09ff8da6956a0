"""GGUF tensor names → the names of Hugging Face checkpoints, with what must be undone to a tensor on the way.

GGUF side: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/tensor_mapping.py and the conversions in llama.cpp's
convert_hf_to_gguf.py: `llama` permutes rows of Q and K from halves to interleaved pairs, `gemma*` adds 1 to norm weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from trivium.errors import UnsupportedArchitecture, WeightError
from trivium.sources.gguf_config import ROPE_TENSORS

_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA = _COMMON | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = _COMMON | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_MIXTRAL = _COMMON | {"ffn_gate_inp": "block_sparse_moe.gate"}
_BLOCK_NAMES = {
    "llama": _MIXTRAL,
    "qwen2": _COMMON,
    "qwen3": _COMMON | _QK_NORM,
    "qwen3moe": _COMMON | _QK_NORM | {"ffn_gate_inp": "mlp.gate"},
    "gemma2": _GEMMA,
    "gemma3": _GEMMA | _QK_NORM,
    "phi3": _PHI3,
}
_EXPERTS = {
    "llama": ("block_sparse_moe.experts", {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}),
    "qwen3moe": ("mlp.experts", {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}),
}
_BLOCK = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<leaf>weight|bias)")


@dataclass(frozen=True)
class Origin:
    """Where one HF tensor comes from: the GGUF tensor, an expert's slice of it, and what is undone after reading."""

    gguf_name: str
    expert: int | None = None
    permuted_heads: int | None = None
    """Rows are heads whose pairs lie side by side; HF keeps them in halves."""
    offset: float = 0.0
    """Added to each value."""


def hf_names(arch: str, shapes: dict[str, tuple[int, ...]], num_heads: int, num_kv_heads: int) -> dict[str, Origin]:
    """HF name → origin, for the tensors of a GGUF file of architecture `arch`, given their names and shapes.

    Raises `WeightError` for a tensor without a place in that architecture.
    """
    if arch not in _BLOCK_NAMES:
        raise UnsupportedArchitecture(f"GGUF architecture {arch!r} is not supported. Supported: {', '.join(sorted(_BLOCK_NAMES))}.")
    result: dict[str, Origin] = {}
    for name, shape in shapes.items():
        if name in ROPE_TENSORS:
            continue
        for hf_name, origin in _places(arch, name, shape, {"attn_q": num_heads, "attn_k": num_kv_heads}):
            if hf_name in result:
                raise WeightError(f"Tensors {result[hf_name].gguf_name!r} and {name!r} are both {hf_name!r}.")
            result[hf_name] = origin
    return result


def _places(arch: str, name: str, shape: tuple[int, ...], permuted: dict[str, int]) -> list[tuple[str, Origin]]:
    norm_offset = -1.0 if arch.startswith("gemma") and name.endswith("norm.weight") else 0.0
    if name in _TOP:
        return [(_TOP[name], Origin(name, offset=norm_offset))]
    match = _BLOCK.fullmatch(name)
    if match is None:
        raise WeightError(f"Tensor {name!r} is not one that GGUF architecture {arch!r} has.")
    part, prefix, leaf = match["part"], f"model.layers.{int(match['layer'])}", match["leaf"]
    expert_path, expert_names = _EXPERTS.get(arch, ("", {}))
    if part in expert_names:
        experts = range(_num_experts(name, shape))
        return [(f"{prefix}.{expert_path}.{expert}.{expert_names[part]}.{leaf}", Origin(name, expert=expert)) for expert in experts]
    if part not in _BLOCK_NAMES[arch]:
        raise WeightError(f"Tensor {name!r} is not one that GGUF architecture {arch!r} has.")
    heads = permuted.get(part) if arch == "llama" else None
    return [(f"{prefix}.{_BLOCK_NAMES[arch][part]}.{leaf}", Origin(name, permuted_heads=heads, offset=norm_offset))]


def _num_experts(name: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 3:
        raise WeightError(f"Tensor {name!r} must have three dimensions, experts first, not {list(shape)}.")
    return shape[0]


def known_tensor(names: Collection[str], name: str, where: str) -> None:
    """Raises `WeightError` if `name` is missing, naming a few that are there and alike."""
    if name in names:
        return
    alike = [other for other in names if other.rsplit(".", 2)[-2:] == name.rsplit(".", 2)[-2:]][:3]
    hint = f" It has {', '.join(alike)}, …" if alike else ""
    raise WeightError(f"Tensor {name!r} is missing in {where}.{hint}")

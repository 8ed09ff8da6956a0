"""The same GGUF file through transformers' loader and ours: equal configs and equal weights, for each architecture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_gguf import TensorSpec, llama_metadata, write_gguf
from helpers_gguf_vocab import byte_level_metadata

from trivium.sources import resolve
from trivium.weights import open_source

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
    "max_position_embeddings": 128,
}
MOE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 768}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "qwen2": ("qwen2", {}, {}),
    # transformers reads neither Qwen3's head size nor the width of its experts from GGUF: theirs are the defaults.
    "qwen3": ("qwen3", {"head_dim": 128}, {"attention.key_length": 128}),
    "qwen3_moe": (
        "qwen3moe",
        MOE | {"head_dim": 128},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 768, "attention.key_length": 128},
    ),
    "gemma2": (
        "gemma2",
        {"sliding_window": 32},
        {"attention.sliding_window": 32, "attention.key_length": 16, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": ("gemma3", {"sliding_window": 32}, {"attention.sliding_window": 32, "attention.key_length": 16}),
    "phi3": ("phi3", {"pad_token_id": 0}, {}),
}
SAME_KEYS = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "attn_logit_softcapping",
    "final_logit_softcapping",
]


def stored_tensors(model_type: str, arch: str, changes: dict[str, Any]) -> list[TensorSpec]:
    """Random numbers under GGUF's names, in the shapes that this architecture's model has."""
    config = transformers.AutoConfig.for_model(model_type, **(TINY | changes))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
    table = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    generator = torch.Generator().manual_seed(0)
    specs: list[TensorSpec] = []
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        for stored_name, shape in stored_shapes(name, tuple(tensor.shape), table):
            value = torch.randn(shape, generator=generator)
            specs.append(TensorSpec(stored_name, shape, 0, value.numpy().tobytes()))
    return specs


def stored_shapes(name: str, shape: tuple[int, ...], table: Any) -> list[tuple[str, tuple[int, ...]]]:
    """transformers keeps gate and up of all experts in one tensor; GGUF has one stack for each."""
    fused = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)", name)
    if fused is None:
        stored_name = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        return [(stored_name, shape)]
    layer, which = fused.groups()
    if which == "down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", shape)]
    half = (shape[0], shape[1] // 2, shape[2])
    return [(f"blk.{layer}.ffn_gate_exps.weight", half), (f"blk.{layer}.ffn_up_exps.weight", half)]


def metadata(arch: str, changes: dict[str, Any]) -> dict[str, Any]:
    base = {key.replace("llama.", f"{arch}.", 1): value for key, value in llama_metadata().items()}
    tokenizer = byte_level_metadata() | {
        "general.architecture": arch,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }
    return tokenizer | base | {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in changes.items()}


def fused_experts(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our one name per expert, as transformers stacks them."""
    result = {name: value for name, value in found.items() if ".experts." not in name}
    stacks: dict[tuple[str, str], list[torch.Tensor]] = {}
    for name, value in found.items():
        match = re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if match is not None:
            stacks.setdefault((match[1], match[2]), []).append(value)
    for prefix in dict.fromkeys(prefix for prefix, _ in stacks):
        gate, up, down = (torch.stack(stacks[prefix, part]) for part in ("gate", "up", "down"))
        result |= {f"{prefix}.gate_up_proj": torch.cat((gate, up), dim=1), f"{prefix}.down_proj": down}
    return result


@pytest.mark.parametrize("model_type", CASES)
def test_transformers_reads_the_same_weights_and_config(tmp_path: Path, model_type: str):
    arch, changes, keys = CASES[model_type]
    path = write_gguf(tmp_path / "m.gguf", metadata(arch, keys), stored_tensors(model_type, arch, changes))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    theirs = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    files = resolve(str(path))
    source = open_source(files)
    ours = fused_experts({name: source.load(name) for name in source.names()})
    assert sorted(ours) == sorted(theirs)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    read = model.config.to_dict()
    differing = {key: (files.config[key], read[key]) for key in SAME_KEYS if key in files.config and key in read and files.config[key] != read[key]}
    assert differing == {}

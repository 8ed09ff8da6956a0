"""GGUF weights under HF names: every architecture's names, Q and K rows put back, experts cut out, norms without Gemma's 1."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers_gguf import TensorSpec, llama_metadata, write_gguf

from trivium.errors import UnsupportedArchitecture, UnsupportedWeightFormat, WeightError
from trivium.sources import resolve
from trivium.sources.packaged import packaged_model
from trivium.weights import open_source
from trivium.weights.gguf import GGUFSource

gguf = pytest.importorskip("gguf")
HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 16, 64


def metadata(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    base = {key.replace("llama.", f"{arch}.", 1): value for key, value in llama_metadata().items()}
    return base | {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in changes.items()}


def stored(name: str, value: torch.Tensor, kind: str = "F32") -> TensorSpec:
    array = value.float().numpy()
    quantized = gguf.GGMLQuantizationType[kind]
    raw = value.to(torch.bfloat16).view(torch.uint8).numpy() if kind == "BF16" else gguf.quants.quantize(array, quantized)
    return TensorSpec(name, tuple(value.shape), quantized.value, raw.tobytes())


def source(folder: Path, tensors: list[TensorSpec], meta: dict[str, Any] | None = None) -> GGUFSource:
    return GGUFSource([write_gguf(folder / "m.gguf", meta or metadata(), tensors)])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_llama_cpp_stores(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """convert_hf_to_gguf's `permute`: halves of each head become pairs of neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_types_come_as_they_are_stored(tmp_path, kind, dtype):
    value = random(3, 32)
    found = source(tmp_path, [stored("token_embd.weight", value, kind)]).load("model.embed_tokens.weight")
    assert found.dtype is dtype
    assert torch.equal(found, value.to(dtype))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize(("part", "module", "heads"), [("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)])
def test_rows_of_q_and_k_are_put_back_as_hf_has_them(tmp_path, kind, part, module, heads):
    weight = random(heads * DIM, HIDDEN)
    plain = source(tmp_path, [stored("blk.1.attn_v.weight", weight, kind)]).load("model.layers.1.self_attn.v_proj.weight").clone()
    permuted = stored(f"blk.1.{part}.weight", as_llama_cpp_stores(weight, heads), kind)
    opened = source(tmp_path, [permuted])
    name = f"model.layers.1.self_attn.{module}.weight"
    assert opened.names() == [name]
    assert opened.shape(name) == (heads * DIM, HIDDEN)
    assert torch.equal(opened.load(name), plain)


def test_biases_of_q_and_k_are_put_back_too(tmp_path):
    bias = random(HEADS * DIM)
    opened = source(tmp_path, [stored("blk.0.attn_q.bias", as_llama_cpp_stores(bias, HEADS))])
    assert torch.equal(opened.load("model.layers.0.self_attn.q_proj.bias"), bias)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma2", "phi3"])
def test_other_architectures_store_rows_in_hf_order(tmp_path, arch):
    weight = random(HEADS * DIM, HIDDEN)
    opened = source(tmp_path, [stored("blk.0.attn_q.weight", weight)], metadata(arch))
    assert torch.equal(opened.load("model.layers.0.self_attn.q_proj.weight"), weight)


@pytest.mark.parametrize("arch", ["gemma2", "gemma3"])
def test_gemmas_norms_lose_the_one_that_was_added(tmp_path, arch):
    weight = random(HIDDEN)
    names = {
        "blk.0.ffn_norm": "model.layers.0.pre_feedforward_layernorm",
        "output_norm": "model.norm",
        "blk.0.post_ffw_norm": "model.layers.0.post_feedforward_layernorm",
    }
    opened = source(tmp_path, [stored(f"{name}.weight", weight + 1) for name in names], metadata(arch))
    for hf_name in names.values():
        torch.testing.assert_close(opened.load(f"{hf_name}.weight"), weight, atol=1e-6, rtol=0)
    plain = source(tmp_path, [stored("output_norm.weight", weight)])
    assert torch.equal(plain.load("model.norm.weight"), weight)


@pytest.mark.parametrize(
    ("arch", "path", "parts"),
    [
        ("llama", "block_sparse_moe.experts", {"gate": "w1", "up": "w3", "down": "w2"}),
        ("qwen3moe", "mlp.experts", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    ],
)
def test_stacked_experts_are_cut_apart(tmp_path, arch, path, parts):
    stacks = {part: random(3, 8, 32, seed=i) for i, part in enumerate(parts)}
    opened = source(tmp_path, [stored(f"blk.0.ffn_{part}_exps.weight", value, "Q8_0") for part, value in stacks.items()], metadata(arch))
    assert len(opened.names()) == 9
    for part, module in parts.items():
        for expert in range(3):
            name = f"model.layers.0.{path}.{expert}.{module}.weight"
            assert opened.shape(name) == (8, 32)
            assert (opened.load(name) - stacks[part][expert]).abs().max() < 0.05


NAMES = {
    "llama": {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.up_proj"},
    "qwen3": {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj"},
    "qwen3moe": {"ffn_gate_inp": "mlp.gate"},
    "gemma2": {"post_attention_norm": "post_attention_layernorm"},
    "gemma3": {"attn_q_norm": "self_attn.q_norm"},
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
}


@pytest.mark.parametrize(("arch", "part", "module"), [(arch, part, module) for arch, names in NAMES.items() for part, module in names.items()])
def test_names_of_each_architecture(tmp_path, arch, part, module):
    opened = source(tmp_path, [stored(f"blk.3.{part}.weight", random(4))], metadata(arch))
    assert opened.names() == [f"model.layers.3.{module}.weight"]


def test_names_agree_with_the_gguf_package():
    """Its table maps HF names to GGUF names: every name we give must lead back."""
    from trivium.weights.names import hf_names

    for arch in ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"):
        table = gguf.get_tensor_name_map(next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch), 1)
        tensors = gguf.MODEL_TENSORS[next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)]
        stored_names = [gguf.TENSOR_NAMES[each].format(bid=0) for each in tensors]
        ours = 0
        for name in stored_names:
            try:
                places = hf_names(arch, {f"{name}.weight": (2, 4, 4)}, 2, 2)
            except WeightError:
                continue
            for hf_name, origin in places.items():
                ours += 1
                if origin.expert is None:
                    assert table.get_name(hf_name, try_suffixes=(".weight",)) == f"{name}.weight", (arch, hf_name)
        assert ours >= 9, arch


def test_rope_factors_are_no_weights(tmp_path):
    opened = source(tmp_path, [stored("rope_freqs.weight", random(8)), stored("output.weight", random(2, 4))])
    assert opened.names() == ["lm_head.weight"]


def test_parts_of_a_split_model_are_one_source(tmp_path):
    first = write_gguf(tmp_path / "a.gguf", metadata(), [stored("output_norm.weight", random(4))])
    second = write_gguf(tmp_path / "b.gguf", {"split.no": 1}, [stored("output.weight", random(2, 4))])
    opened = GGUFSource([first, second])
    assert opened.names() == ["model.norm.weight", "lm_head.weight"]
    assert (opened.file_of("lm_head.weight"), opened.total_bytes) == (str(second), 48)
    with pytest.raises(WeightError, match=r"'output_norm.weight' is in .*a\.gguf and again in .*c\.gguf"):
        GGUFSource([first, write_gguf(tmp_path / "c.gguf", {}, [stored("output_norm.weight", random(4))])])


def blank(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, 0, bytes(4 * int(np.prod(shape))))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([blank("blk.0.mystery.weight", 1)], "'blk.0.mystery.weight' is not one that GGUF architecture 'llama' has"),
        ([blank("mystery", 1)], "'mystery' is not one that"),
        ([blank("blk.1.ffn_up.weight", 1), blank("blk.01.ffn_up.weight", 1)], "'blk.1.ffn_up.weight' and 'blk.01.ffn_up.weight' are both"),
        ([blank("blk.0.ffn_up_exps.weight", 2, 2)], "must have three dimensions"),
    ],
)
def test_tensors_that_have_no_place_are_named(tmp_path, tensors, message):
    with pytest.raises(WeightError, match=message):
        source(tmp_path, tensors)


def test_rows_that_are_no_whole_heads_are_named(tmp_path):
    opened = source(tmp_path, [blank("blk.0.attn_q.weight", 5, 2)])
    with pytest.raises(WeightError, match=r"m.gguf: tensor 'blk.0.attn_q.weight' \[5, 2\] can't be split into 4 heads"):
        opened.load("model.layers.0.self_attn.q_proj.weight")


def test_an_unsupported_type_is_named_before_anything_is_read(tmp_path):
    with pytest.raises(UnsupportedWeightFormat, match=r"m.gguf: tensor 'token_embd.weight' is of type Q2_K. Supported: F32"):
        source(tmp_path, [TensorSpec("token_embd.weight", (1, 256), 10, bytes(84))])


def test_a_tensor_that_is_missing_is_named_with_the_file(tmp_path):
    opened = source(tmp_path, [stored("blk.0.attn_v.weight", random(4, 4))])
    for ask in (opened.load, opened.shape, opened.file_of):
        with pytest.raises(WeightError, match=r"'model.layers.7.self_attn.v_proj.weight' is missing in .*m\.gguf.* It has model.layers.0"):
            ask("model.layers.7.self_attn.v_proj.weight")
    with pytest.raises(WeightError, match=r"'x' is missing in .*m\.gguf\.$"):
        opened.load("x")


def test_an_unknown_architecture_lists_the_known_ones(tmp_path):
    with pytest.raises(UnsupportedArchitecture, match="'mamba' is not supported. Supported: gemma2"):
        source(tmp_path, [stored("output_norm.weight", random(4))], metadata("mamba"))


def test_writing_into_a_tensor_leaves_the_file_alone(tmp_path):
    opened = source(tmp_path, [stored("output_norm.weight", random(4))])
    before = (tmp_path / "m.gguf").read_bytes()
    opened.load("model.norm.weight").fill_(7.0)
    assert (tmp_path / "m.gguf").read_bytes() == before


def test_an_empty_tensor_is_empty(tmp_path):
    assert source(tmp_path, [TensorSpec("output.weight", (0, 4), 0, b"")]).load("lm_head.weight").shape == (0, 4)


@pytest.mark.skipif(packaged_model() is None, reason="the packaged model is not installed")
def test_the_packaged_model_is_dequantized_right_and_fast():
    files = resolve("")
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        opened = open_source(files)
        for name in opened.names():
            opened.load(name)
        best = min(best, time.perf_counter() - start)
    assert best < 5.0, "0.25 s on a quiet machine"
    assert len(opened.names()) == 272
    assert "lm_head.weight" not in opened.names()
    assert opened.shape("model.embed_tokens.weight") == (49152, 576)
    reader = gguf.GGUFReader(files.path)
    theirs = {each.name: each for each in reader.tensors if each.name in ("token_embd.weight", "blk.3.ffn_down.weight", "blk.3.attn_v.weight")}
    names = {"token_embd.weight": "model.embed_tokens.weight", "blk.3.ffn_down.weight": "model.layers.3.mlp.down_proj.weight"}
    names["blk.3.attn_v.weight"] = "model.layers.3.self_attn.v_proj.weight"
    for name, hf_name in names.items():
        np.testing.assert_array_equal(opened.load(hf_name).numpy(), gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type))

"""Whole models with quantized weights give the logits of the matrices those stand for: dense, experts, latent attention, several ranks."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_checkpoints import checkpoint
from helpers_harness import DictSource, PagedHarness
from helpers_quantized import FORMATS, QuantizedCheckpoint, quantized_checkpoint
from helpers_rank_processes import run_ranks
from safetensors.torch import load_file, save_file

from trivium.errors import ConfigError, WeightError
from trivium.models import build_model
from trivium.ops.attention import create_attention_backend
from trivium.ops.cpu.quantized import CPUQuantized
from trivium.ops.dispatch import load_fast_paths, references_only

TOKENS = [(7 * index * index + 3 * index) % 211 for index in range(60)]
needs_kernels = pytest.mark.skipif("pack_quantized" not in load_fast_paths("cpu"), reason="the CPU kernels are not built")


@functools.cache
def made(form: str, name: str = "llama") -> QuantizedCheckpoint:
    return quantized_checkpoint(name, FORMATS[form])


@functools.cache
def expected(form: str, name: str = "llama") -> torch.Tensor:
    with references_only("cpu"):
        return PagedHarness(made(form, name).plain_spec, made(form, name).plain).logits(TOKENS)


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_those_of_the_dequantized_model(form: str) -> None:
    with references_only("cpu"):
        logits = PagedHarness(made(form).spec, made(form).tensors).logits(TOKENS, chunk=17)
    assert (logits - expected(form)).abs().max() <= 1e-4


@needs_kernels
@pytest.mark.parametrize("form", FORMATS)
def test_logits_of_the_kernels_are_those_of_the_dequantized_model(form: str) -> None:
    harness = PagedHarness(made(form).spec, made(form).tensors, backend="cpu")
    linears = [layer for _, layer in harness.model.walk() if hasattr(layer, "raw")]
    assert linears and all(isinstance(layer.packed, CPUQuantized) for layer in linears)
    assert (harness.logits(TOKENS, chunk=17) - expected(form)).abs().max() <= 1e-4
    # Inputs that are to be put in another order first are no matter for the fused layers.
    assert (harness.model.fused is None) == (form == "gptq-act-order")
    harness.model.fused = None
    assert (harness.logits(TOKENS, chunk=17) - expected(form)).abs().max() <= 1e-4


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("rows", [1, 5, 60])
@needs_kernels
def test_fused_layers_equal_the_layers(gate: str, rows: int) -> None:
    """Biases, both activations, one token and many, in bfloat16."""
    quantized = quantized_checkpoint("llama-bias" if gate == "gelu" else "qwen2-full", FORMATS["awq"])
    harness = PagedHarness(quantized.spec, quantized.tensors, backend="cpu", dtype=torch.bfloat16)
    assert harness.model.fused is not None
    fused = harness.logits(TOKENS[:rows])
    harness.model.fused = None
    layers = harness.logits(TOKENS[:rows])
    assert float((fused - layers).norm() / layers.norm()) < 0.03


@pytest.mark.parametrize("name", ["phi3", "qwen3-moe", "deepseek-v2", "llama-bias", "gemma2"])
@pytest.mark.parametrize("form", ["awq", "gptq-act-order", "fp8-channel"])
def test_other_networks(name: str, form: str) -> None:
    """Experts and latent attention keep plain weights, made of the quantized ones on load."""
    quantized = quantized_checkpoint(name, FORMATS[form])
    with references_only("cpu"):
        plain = PagedHarness(quantized.plain_spec, quantized.plain).logits(TOKENS)
        logits = PagedHarness(quantized.spec, quantized.tensors).logits(TOKENS)
    assert (logits - plain).abs().max() <= 1e-4


def test_a_quantized_checkpoint_can_be_kept_plain() -> None:
    common: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "attention": create_attention_backend("reference", "cpu")}
    with references_only("cpu"):
        model = build_model(made("awq").spec, source=DictSource(made("awq").tensors), dequantize=True, **common)
        plain = build_model(made("awq").plain_spec, source=DictSource(made("awq").plain), **common)
    for (name, tensor), (_, other) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-6, atol=1e-7, msg=name)


def test_some_modules_left_plain_and_others_in_another_order() -> None:
    """q and k act-ordered alike, v in an order of its own; the gate not quantized at all: parts of one stacked layer."""
    form = FORMATS["gptq-act-order"]
    quantized = quantized_checkpoint("llama", form)
    module = "model.layers.0.self_attn.v_proj"
    order = torch.randperm(64)
    raw, dense = form.make(checkpoint("llama").tensors[f"{module}.weight"][:, order])
    inverse = order.argsort()
    # Its groups are permuted along with its columns.
    from trivium.weights.bits import pack, unpack

    raw["qweight"] = pack(unpack(raw["qweight"].T, 4)[:, inverse].contiguous(), 4).T.contiguous()
    raw["g_idx"] = raw["g_idx"][inverse].contiguous()
    quantized.tensors |= {f"{module}.{suffix}": value for suffix, value in raw.items()}
    quantized.plain[f"{module}.weight"] = dense[:, inverse].float().contiguous()
    gate = "model.layers.1.mlp.gate_proj"
    for suffix in raw:
        del quantized.tensors[f"{gate}.{suffix}"]
    quantized.tensors[f"{gate}.weight"] = quantized.plain[f"{gate}.weight"] = checkpoint("llama").tensors[f"{gate}.weight"]
    quantized.config["quantization_config"] = {**form.section, "modules_to_not_convert": ["layers.1.mlp.gate_proj"]}
    with references_only("cpu"):
        plain = PagedHarness(quantized.plain_spec, quantized.plain).logits(TOKENS)
        assert (PagedHarness(quantized.spec, quantized.tensors).logits(TOKENS) - plain).abs().max() <= 1e-4
    assert (PagedHarness(quantized.spec, quantized.tensors).logits(TOKENS) - plain).abs().max() <= 1e-4


@pytest.mark.parametrize("size", [2])
def test_ranks_together_equal_one(size: int, tmp_path: Path) -> None:
    """Row-parallel shards cut through groups, and take their own inputs from shuffled ones."""
    forms = ("awq", "gptq-act-order", "gptq8", "gptq3-v2-asymmetric", "nf4", "bnb-int8", "fp8-block", "packed8-asymmetric")
    cases = tmp_path / "cases"
    for form in forms:
        folder = cases / form
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(made(form).config))
        save_file({name: tensor.contiguous() for name, tensor in made(form).tensors.items()}, folder / "model.safetensors")
    (cases / "tokens.json").write_text(json.dumps(TOKENS))
    run_ranks(size, tmp_path / "store", cases)
    for form in forms:
        logits = load_file(cases / form / f"logits-{size}-0.safetensors")["logits"]
        assert (logits - expected(form)).abs().max() <= 1e-4, form


def test_errors_name_the_tensor() -> None:
    def build(changes: dict[str, torch.Tensor | None]) -> None:
        tensors = {**made("awq").tensors, **changes}
        source = DictSource({name: tensor for name, tensor in tensors.items() if tensor is not None})
        build_model(made("awq").spec, dtype=torch.float32, device="cpu", attention=create_attention_backend("auto", "cpu"), source=source)

    name = "model.layers.1.mlp.down_proj"
    with pytest.raises(WeightError, match=rf"lacks {name}\.scales"):
        build({f"{name}.scales": None})
    with pytest.raises(WeightError, match=rf"{name}\.qzeros .* has shape \[2, 8\], the config calls for \[3, 8\]"):
        build({f"{name}.qzeros": torch.zeros(2, 8, dtype=torch.int32)})
    with pytest.raises(WeightError, match=rf"holds {name}\.weight"):
        build({f"{name}.weight": torch.zeros(64, 96)})


def test_three_ranks_do_not_divide_the_model() -> None:
    from trivium.ops.collective import ParallelContext

    parallel = ParallelContext(0, 3, object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tensor_parallel_size 3"):
        PagedHarness(made("awq").spec, made("awq").tensors, parallel=parallel)

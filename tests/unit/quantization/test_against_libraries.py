"""Checkpoints written by the original libraries, and logits beside theirs: bitsandbytes and compressed-tensors run on CPUs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers_checkpoints import BY_NAME, Case, checkpoint
from helpers_harness import PagedHarness
from safetensors.torch import load_file, save_file

from trivium.arch import ModelSpec
from trivium.ops.dispatch import references_only

TOKENS = [(7 * index * index + 3 * index) % 211 for index in range(60)]
# bitsandbytes' kernels for CPUs want widths that are multiples of its blocks.
BY_NAME["llama-even"] = Case("llama-even", "Llama", {**BY_NAME["llama"].arguments, "intermediate_size": 128})


def plain_folder(folder: Path) -> Path:
    """The tiny Llama as transformers writes it."""
    found = checkpoint("llama-even")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(found.config))
    save_file({name: tensor.clone() for name, tensor in found.tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load_reference(folder: Path, **arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **arguments).eval()


@torch.inference_mode()
def reference_logits(model: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(torch.tensor([TOKENS]), use_cache=False).logits[0].float()


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    return float((logits - expected).norm() / expected.norm())


def our_logits(folder: Path, *, fast: bool = True) -> torch.Tensor:
    spec = ModelSpec.from_config(json.loads((folder / "config.json").read_text()))
    assert spec.quantization is not None
    tensors = load_file(folder / "model.safetensors")
    if fast:
        return PagedHarness(spec, tensors).logits(TOKENS)
    with references_only("cpu"):
        return PagedHarness(spec, tensors).logits(TOKENS)


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        # Its kernels for CPUs compute in bfloat16.
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 0.03),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, 0.03),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}, 0.03),
        # Its products round inputs to int8 as well; ours do not.
        ({"load_in_8bit": True}, 0.06),
    ],
)
def test_bitsandbytes(tmp_path: Path, arguments: dict[str, Any], tolerance: float) -> None:
    pytest.importorskip("bitsandbytes")
    config = transformers.BitsAndBytesConfig(**arguments, bnb_4bit_compute_dtype=torch.float32)
    model = load_reference(plain_folder(tmp_path / "plain"), quantization_config=config, device_map="cpu")
    model.save_pretrained(tmp_path / "quantized")
    expected = reference_logits(model)
    assert relative_error(our_logits(tmp_path / "quantized", fast=False), expected) <= tolerance
    assert relative_error(our_logits(tmp_path / "quantized"), expected) <= tolerance


EIGHT = {"num_bits": 8, "type": "int", "symmetric": True}
SCHEMES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None, float]] = {
    "packed": ("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}, None, 1e-5),
    "packed-asymmetric": ("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}, None, 1e-5),
    "packed-8": ("pack-quantized", {**EIGHT, "strategy": "channel"}, None, 1e-5),
    "w8a16": ("int-quantized", {**EIGHT, "strategy": "channel"}, None, 1e-5),
    "w8a8": ("int-quantized", {**EIGHT, "strategy": "channel", "dynamic": False}, {**EIGHT, "strategy": "token", "dynamic": True}, 0.05),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}, None, 1e-5),
    "fp8-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}, None, 1e-5),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_compressed_tensors(tmp_path: Path, name: str) -> None:
    """The library compresses the plain checkpoint with scales of ours, transformers runs it with the library."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    form, weights, inputs, tolerance = SCHEMES[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=form)
    model = load_reference(plain_folder(tmp_path / "plain"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apply_quantization_config(model, config)
        for module in model.modules():
            if hasattr(module, "weight_scale"):
                group = scheme.weights.group_size
                blocks = module.weight.data.unflatten(1, (-1, group)) if group else module.weight.data.unsqueeze(1)
                low, high = blocks.amin(dim=-1), blocks.amax(dim=-1)
                if scheme.weights.strategy == "tensor":
                    low, high = low.min(), high.max()
                scale, zero = calculate_qparams(low, high, scheme.weights)
                module.weight_scale.data.copy_(scale.view_as(module.weight_scale))
                if hasattr(module, "weight_zero_point"):
                    module.weight_zero_point.data.copy_(zero.view_as(module.weight_zero_point))
        expected = reference_logits(model)
        compressor = ModelCompressor.from_pretrained_model(model, quantization_format=form)
        compressor.compress_model(model)
        model.save_pretrained(tmp_path / "quantized")
        compressor.update_config(str(tmp_path / "quantized"))
    assert relative_error(our_logits(tmp_path / "quantized", fast=False), expected) <= tolerance
    assert relative_error(our_logits(tmp_path / "quantized"), expected) <= tolerance

"""`trivium quantize` on a tiny model: its checkpoints load here and in transformers, and are near the model they were made of."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from click.testing import CliRunner
from helpers_checkpoints import checkpoint
from helpers_harness import PagedHarness

from trivium.arch import ModelSpec
from trivium.cli.quantize import command
from trivium.errors import ConfigError, ModelLoadError
from trivium.quantization.job import QuantizeJob
from trivium.quantization.run import quantize
from trivium.sources import resolve
from trivium.weights import open_source
from trivium.weights.write import CheckpointWriter

TOKENS = [(7 * index * index + 3 * index) % 211 for index in range(60)]
WORDS = " ".join(f"w{(7 * index * index) % 200}" for index in range(3000))


def model_folder(name: str, folder: Path) -> Path:
    """With a tokenizer whose words are w0 to w199."""
    folder.mkdir()
    found = checkpoint(name)
    (folder / "config.json").write_text(json.dumps(found.config))
    safetensors.torch.save_file(
        {key: tensor.clone() for key, tensor in found.tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{index}": index for index in range(200)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def our_logits(folder: Path) -> torch.Tensor:
    spec = ModelSpec.from_config(json.loads((folder / "config.json").read_text()))
    return PagedHarness(spec, safetensors.torch.load_file(folder / "model.safetensors")).logits(TOKENS)


def run(model: Path, output: Path, method: str, **arguments: Any) -> list[tuple[str, int, int, str]]:
    reports: list[tuple[str, int, int, str]] = []
    if method in ("awq", "gptq"):
        text = output.parent / "text.txt"
        text.write_text(WORDS)
        arguments = {"calibration": str(text), "num_samples": 12, "sequence_length": 64, **arguments}
    quantize(QuantizeJob(model=str(model), output=str(output), method=method, device="cpu", **arguments), lambda *report: reports.append(report))
    return reports


@pytest.mark.parametrize(
    ("name", "method", "arguments"),
    [
        ("llama", "awq", {}),
        ("llama", "gptq", {}),
        ("llama", "gptq", {"act_order": True, "group_size": -1}),
        ("llama-bias", "awq", {}),
        ("qwen2", "gptq", {}),
        ("phi3", "awq", {"group_size": 32}),
        ("gemma2", "awq", {}),
        ("qwen3", "nf4", {}),
        ("llama", "fp8", {}),
    ],
)
def test_checkpoints_are_near_the_model(name: str, method: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    reports = run(model_folder(name, tmp_path / "plain"), tmp_path / "quantized", method, **arguments)
    plain = checkpoint(name).logits(TOKENS)
    error = float((our_logits(tmp_path / "quantized") - plain).norm() / plain.norm())
    assert 1e-4 < error < (0.12 if method == "fp8" else 0.65)  # tiny random networks make much of little
    assert reports[-1][0] == "quantizing"
    assert (tmp_path / "quantized" / "tokenizer.json").is_file()


def test_awq_leaves_the_network_as_it_was_but_for_rounding(tmp_path: Path) -> None:
    """Scales moved between layers cancel: a norm has changed, and the dequantized model is still the model."""
    folder = model_folder("llama", tmp_path / "plain")
    run(folder, tmp_path / "quantized", "awq")
    written = safetensors.torch.load_file(tmp_path / "quantized" / "model.safetensors")
    norm = "model.layers.0.post_attention_layernorm.weight"
    assert not torch.allclose(written[norm].float(), checkpoint("llama").tensors[norm], rtol=0.02)


@pytest.mark.parametrize("method", ["nf4", "fp8"])
def test_transformers_reads_what_is_written(method: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes" if method == "nf4" else "compressed_tensors")
    from helpers_checkpoints import BY_NAME, Case

    BY_NAME["llama-even"] = Case("llama-even", "Llama", {**BY_NAME["llama"].arguments, "intermediate_size": 128})
    run(model_folder("llama-even", tmp_path / "plain"), tmp_path / "quantized", method)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "quantized", dtype=torch.float32, attn_implementation="eager")
        expected = model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0].float()
    # compressed-tensors rounds inputs to float8 as well, which ours does on GPUs only.
    assert float((our_logits(tmp_path / "quantized") - expected).norm() / expected.norm()) < (0.06 if method == "nf4" else 0.2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "awq"}, ConfigError, "needs a calibration text"),
        ({"method": "gptq", "group_size": 48, "calibration": "x"}, ConfigError, "group_size 48 does not divide"),
        ({"method": "gptq", "calibration": "/nowhere.txt"}, ConfigError, "can't be read as text"),
        ({"method": "gptq", "calibration": "x", "sequence_length": 4096}, ConfigError, "sequence_length 4096 is more"),
    ],
)
def test_what_can_not_be_done_is_said(arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    job = QuantizeJob(model=str(model_folder("llama", tmp_path / "plain")), output=str(tmp_path / "out"), device="cpu", **arguments)
    with pytest.raises(error, match=message):
        quantize(job, lambda *_: None)


def test_folders_in_use_and_quantized_models_are_left_alone(tmp_path: Path) -> None:
    folder = model_folder("llama", tmp_path / "plain")
    with pytest.raises(ConfigError, match="is there already"):
        run(folder, folder, "nf4")
    run(folder, tmp_path / "once", "nf4")
    with pytest.raises(ModelLoadError, match="quantized already"):
        run(tmp_path / "once", tmp_path / "twice", "nf4")
    with pytest.raises(ModelLoadError, match="dense"):
        run(model_folder("mixtral", tmp_path / "experts"), tmp_path / "three", "nf4")


def test_the_command_runs_the_job_in_a_process_of_its_own(tmp_path: Path) -> None:
    folder = model_folder("llama", tmp_path / "plain")
    done = CliRunner().invoke(command, [str(folder), str(tmp_path / "out"), "--method", "nf4", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert result == {"path": str(tmp_path / "out"), "weight_bytes": result["weight_bytes"]}
    assert result["weight_bytes"] == open_source(resolve(str(tmp_path / "out"))).total_bytes
    with pytest.raises(ConfigError, match="is there already"):
        CliRunner().invoke(command, [str(folder), str(tmp_path / "out"), "--method", "nf4"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="needs --calibration"):
        CliRunner().invoke(command, [str(folder), str(tmp_path / "other"), "--method", "awq"], catch_exceptions=False)


def test_large_checkpoints_are_written_in_parts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {f"t{index}": torch.randn(7, index + 1).to(dtype) for index, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16] * 3)}
    tensors["codes"] = torch.arange(5, dtype=torch.uint8)
    writer = CheckpointWriter(tmp_path, max_file_bytes=300)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.finish()
    (tmp_path / "config.json").write_text("{}")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and not list(tmp_path.glob("*.unfinished"))
    source = open_source(resolve(str(tmp_path)))
    assert source.total_bytes == writer.num_bytes
    for name, tensor in tensors.items():
        assert torch.equal(source.load(name), tensor)
    for path in tmp_path.glob("*.safetensors"):
        assert safetensors.torch.load_file(path)

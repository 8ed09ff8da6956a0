"""One job from model to folder: load, look at the calibration text layer by layer, round, write."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trivium.arch import ModelSpec
from trivium.arch.spec import AttentionSpec, FeedForwardSpec
from trivium.errors import ConfigError, ModelLoadError
from trivium.models import Model, build_model
from trivium.ops.attention import create_attention_backend
from trivium.ops.attention.base import KVCache
from trivium.ops.dispatch import references_only
from trivium.quantization import formats
from trivium.quantization.calibration import BLOCK_SIZE, CalibrationRun, read_sequences
from trivium.quantization.job import CALIBRATED, QuantizeJob
from trivium.quantization.layers import QuantizeLayer, changed_tensors, linears_of, quantize_by_awq, quantize_by_gptq, quantize_layer
from trivium.sources import ModelFiles, resolve
from trivium.sources.gguf_file import read_gguf
from trivium.text import load_tokenizer
from trivium.weights import WeightSource, open_source
from trivium.weights.write import CheckpointWriter

Report = Callable[[str, int, int, str], None]
"""(stage, done, total, unit)"""

GROUP_SIZES = (128, 64, 32)
PLAIN = (torch.float32, torch.bfloat16, torch.float16)
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json")


@torch.inference_mode()
def quantize(job: QuantizeJob, report: Report) -> int:
    """Bytes of weights written. Raises `ConfigError`, `ModelLoadError`."""
    files = resolve(job.model, job.revision)
    spec = ModelSpec.from_config(files.config)
    _check(job, files, spec)
    output = _empty_folder(Path(job.output))
    device = torch.device("cuda" if job.device == "cuda" or (job.device == "auto" and torch.cuda.is_available()) else "cpu")
    # The layers' own weights are read and written here, so nothing may be packed.
    with references_only(device.type):
        source = open_source(files)
        attention = create_attention_backend("reference", device)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        model = build_model(spec, dtype=dtype, device=device, attention=attention, source=source, progress=partial(_report_bytes, report))
        group = _group_size(job, model)
        writer = CheckpointWriter(output)
        if job.method in CALIBRATED:
            assert job.calibration is not None
            sequences = read_sequences(Path(job.calibration), load_tokenizer(files), num_samples=job.num_samples, length=job.sequence_length)
            run = CalibrationRun(model, attention, sequences, device)
            changes = _calibrated(job, model, run, group, report)
        else:
            changes = _rounded(job, model, source, report)
        _write(writer, source, changes, _written_dtype(spec))
    (output / "config.json").write_text(json.dumps(_config(job, files, spec, group), indent=2) + "\n")
    _copy_rest(files, output)
    return writer.num_bytes


def _report_bytes(report: Report, stage: str, done: int, total: int) -> None:
    report(stage, done, total, "bytes")


def _check(job: QuantizeJob, files: ModelFiles, spec: ModelSpec) -> None:
    if job.method in CALIBRATED and job.calibration is None:
        raise ConfigError(f"{job.method} needs a calibration text.", param="calibration")
    if spec.quantization is not None:
        raise ModelLoadError(f"{files.name} is quantized already ({spec.quantization.method}).")
    if any(not isinstance(layer.attention, AttentionSpec) or not isinstance(layer.feed_forward, FeedForwardSpec) for layer in spec.layers):
        raise ModelLoadError("Only dense models can be quantized so far, not mixtures of experts or latent attention.")
    if job.sequence_length > spec.max_model_len:
        raise ConfigError(f"sequence_length {job.sequence_length} is more than the model's {spec.max_model_len}.", param="sequence_length")


def _empty_folder(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already; give a new folder.", param="output")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}", param="output") from None
    return path


def _group_size(job: QuantizeJob, model: Model) -> int:
    """-1: one group. Raises `ConfigError` for a size that doesn't divide every layer's inputs."""
    widths = [linear.in_features for layer in model.layers for linear in linears_of(layer)]
    common = math.gcd(*widths)
    if job.group_size == 0:
        return next((size for size in GROUP_SIZES if common % size == 0), -1)
    if job.group_size != -1 and (job.group_size < 1 or common % job.group_size):
        raise ConfigError(f"group_size {job.group_size} does not divide the inputs of every layer ({sorted(set(widths))}).", param="group_size")
    return job.group_size


Changes = Iterator[tuple[str, dict[str, Tensor]]]
"""Checkpoint tensor → the tensors that take its place."""


def _calibrated(job: QuantizeJob, model: Model, run: CalibrationRun, group_size: int, report: Report) -> Changes:
    group = 0 if group_size == -1 else group_size
    method: QuantizeLayer = partial(quantize_by_awq, group=group)
    if job.method == "gptq":
        method = partial(quantize_by_gptq, group=group, act_order=job.act_order)
    pack = formats.awq_tensors if job.method == "awq" else formats.gptq_tensors
    spec = model.spec
    for index, layer in enumerate(model.layers):
        report("quantizing", index, len(model.layers), "layers")
        kv = spec.kv_layers[index]
        shape = (2 + -(-job.sequence_length // BLOCK_SIZE), kv.num_kv_heads, BLOCK_SIZE, kv.head_dim)
        cache = KVCache(*(torch.zeros(shape, dtype=model.dtype, device=model.norm.weight.device) for _ in range(2)))
        for name, rounded in quantize_layer(method, run, layer, cache).items():
            yield f"{name}.weight", {f"{name}.{suffix}": tensor for suffix, tensor in pack(rounded).items()}
        for name, tensor in changed_tensors(layer).items():
            yield name, {name: tensor}
    report("quantizing", len(model.layers), len(model.layers), "layers")


def _rounded(job: QuantizeJob, model: Model, source: WeightSource, report: Report) -> Changes:
    make = formats.nf4_tensors if job.method == "nf4" else formats.fp8_tensors
    dtype = _written_dtype(model.spec)
    for index, layer in enumerate(model.layers):
        report("quantizing", index, len(model.layers), "layers")
        for part in (part for linear in linears_of(layer) for part in linear.rows):
            weight = source.load(f"{part.name}.weight").to(model.norm.weight.device, dtype)
            yield f"{part.name}.weight", {f"{part.name}.{suffix}": tensor for suffix, tensor in make(weight).items()}


def _write(writer: CheckpointWriter, source: WeightSource, changes: Changes, dtype: torch.dtype) -> None:
    """Changed tensors as they come, then the rest of the checkpoint."""
    written: set[str] = set()
    for name, tensors in changes:
        written.add(name)
        for full, tensor in tensors.items():
            writer.add(full, tensor.to(dtype) if full == name and tensor.dtype in PLAIN else tensor)
    for name in source.names():
        if name not in written:
            tensor = source.load(name)
            writer.add(name, tensor.to(dtype) if tensor.is_floating_point() else tensor)
    writer.finish()


def _written_dtype(spec: ModelSpec) -> torch.dtype:
    """Of what stays plain."""
    return torch.float16 if spec.torch_dtype == "float16" else torch.bfloat16


def _config(job: QuantizeJob, files: ModelFiles, spec: ModelSpec, group: int) -> dict[str, Any]:
    dtype = str(_written_dtype(spec)).removeprefix("torch.")
    sections = {
        "awq": lambda: formats.awq_section(group),
        "gptq": lambda: formats.gptq_section(group, act_order=job.act_order),
        "nf4": lambda: formats.nf4_section(dtype),
        "fp8": formats.fp8_section,
    }
    config = {key: value for key, value in files.config.items() if key not in ("dtype", "torch_dtype")}
    return {**config, "torch_dtype": dtype, "quantization_config": sections[job.method]()}


def _copy_rest(files: ModelFiles, output: Path) -> None:
    if files.kind == "gguf":
        _write_tokenizer(files, output)
        return
    for name in COPIED:
        if (files.path / name).is_file():
            shutil.copyfile(files.path / name, output / name)


def _write_tokenizer(files: ModelFiles, output: Path) -> None:
    """Of a .gguf file, as a folder has it."""
    tokenizer = load_tokenizer(files)
    (output / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    roles = {f"{role}_token": getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "pad", "unk")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": read_gguf(files.path).text("tokenizer.chat_template"), **roles}
    present = {name: value for name, value in settings.items() if value is not None}
    (output / "tokenizer_config.json").write_text(json.dumps(present, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

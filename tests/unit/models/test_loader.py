"""Filling a model: every parameter exactly once, errors that name tensor, file and shapes, dummy weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers_checkpoints import CASES, checkpoint
from helpers_harness import DictSource
from torch import Tensor

from trivium.arch import ModelSpec
from trivium.errors import ConfigError, UnsupportedWeightFormat, WeightError
from trivium.layers.base import BuildContext, Layer
from trivium.layers.linear import PlainLinear
from trivium.models import build_model
from trivium.models.build import Model, _rope_tables
from trivium.models.decoder import Decoder
from trivium.models.registry import create_layout
from trivium.ops.attention import create_attention_backend
from trivium.ops.collective import ParallelContext

NAMES = [case.name for case in CASES]


def build(tensors: dict[str, Tensor] | None, name: str = "llama", dtype: torch.dtype = torch.float32, **options: Any) -> Model:
    spec = ModelSpec.from_config(checkpoint(name).config)
    source = DictSource(tensors) if tensors is not None else None
    return build_model(spec, dtype=dtype, device="cpu", attention=create_attention_backend("reference", "cpu"), source=source, **options)


def empty_decoder(name: str, rank: int, size: int) -> Decoder:
    """A model of one rank, without weights and without a process group."""
    spec = ModelSpec.from_config(checkpoint(name).config)
    context = BuildContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        parallel=ParallelContext(rank, size, SimpleNamespace()),  # type: ignore[arg-type]
        attention=create_attention_backend("reference", "cpu"),
        rope_table=_rope_tables(spec.max_model_len, torch.device("cpu")),
        linear_method=lambda _: PlainLinear(),
    )
    return Decoder(spec, create_layout(spec), context)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_slots_cover_each_parameter_exactly_once(name: str, size: int) -> None:
    """Every element of every parameter is written by one copy of one slot, on every rank; the ranks' slots have the checkpoint's names."""
    point = checkpoint(name)
    for rank in range(size):
        model = empty_decoder(name, rank, size)
        names: list[str] = []
        for _, layer in model.walk():
            _fill(layer, 0.0)
            for slot in layer.slots():
                names.append(slot.name)
                assert slot.shape == tuple(point.tensors[slot.name].shape)
                for index, target in slot.copies:
                    assert point.tensors[slot.name][index].shape == target.shape
                    target += 1.0
            for key, tensor in layer.parameters().items():
                written = tensor[: layer.end - layer.start] if hasattr(layer, "end") and key == "weight" else tensor
                assert torch.all(written == 1.0), (key, rank)
        assert sorted(names) == sorted(set(names))
        assert set(names) == set(point.tensors)


def _fill(layer: Layer, value: float) -> None:
    for tensor in layer.parameters().values():
        tensor.fill_(value)


def test_tensors_are_read_once_and_progress_counts_their_bytes() -> None:
    tensors = checkpoint("llama").tensors
    source, reports = DictSource(tensors), []
    spec = ModelSpec.from_config(checkpoint("llama").config)
    build_model(
        spec,
        dtype=torch.float32,
        device="cpu",
        attention=create_attention_backend("reference", "cpu"),
        source=source,
        progress=lambda *report: reports.append(report),
    )
    assert sorted(source.loads) == sorted(tensors)
    assert reports[-1] == ("weights", source.total_bytes, source.total_bytes)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_a_missing_tensor_is_named() -> None:
    tensors = dict(checkpoint("llama").tensors)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(WeightError, match=r"lacks model\.layers\.1\.self_attn\.k_proj\.weight"):
        build(tensors)


def test_an_extra_tensor_is_named_with_its_file() -> None:
    tensors = {**checkpoint("llama").tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}
    with pytest.raises(WeightError, match=r"q_norm\.weight.*memory\.safetensors"):
        build(tensors)


def test_a_misshapen_tensor_is_named_with_file_and_shapes() -> None:
    tensors = {**checkpoint("llama").tensors, "model.layers.2.mlp.down_proj.weight": torch.ones(64, 95)}
    with pytest.raises(WeightError, match=r"down_proj\.weight in memory\.safetensors has shape \[64, 95\].*\[64, 96\]"):
        build(tensors)


@pytest.mark.parametrize("extra", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_buffers_that_follow_from_the_config_are_ignored(extra: str) -> None:
    build({**checkpoint("llama").tensors, extra: torch.ones(8)})


def test_layers_for_multi_token_prediction_are_ignored_as_far_as_the_config_declares_them() -> None:
    tensors = checkpoint("deepseek-v3").tensors
    assert checkpoint("deepseek-v3").config["num_nextn_predict_layers"] == 1
    build({**tensors, "model.layers.3.eh_proj.weight": torch.ones(2)}, "deepseek-v3")
    with pytest.raises(WeightError, match=r"layers\.4"):
        build({**tensors, "model.layers.4.eh_proj.weight": torch.ones(2)}, "deepseek-v3")


def test_a_head_saved_beside_tied_embeddings_is_ignored() -> None:
    tensors = checkpoint("llama3").tensors
    assert "lm_head.weight" not in tensors
    model = build({**tensors, "lm_head.weight": torch.zeros_like(tensors["model.embed_tokens.weight"])}, "llama3")
    assert model.head is None


def test_the_language_model_of_a_vision_checkpoint_loads() -> None:
    point = checkpoint("gemma3")
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": point.config, "dtype": "bfloat16"}
    tensors = {f"language_model.{name}": tensor for name, tensor in point.tensors.items()}
    spec = ModelSpec.from_config(config)
    backend = create_attention_backend("reference", "cpu")
    source = DictSource({**tensors, "vision_tower.x": torch.ones(1), "multi_modal_projector.y": torch.ones(1)})
    model = build_model(spec, dtype=torch.float32, device="cpu", attention=backend, source=source)  # type: ignore[arg-type]
    alone = build(point.tensors, "gemma3")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(model.named_parameters(), alone.named_parameters(), strict=True))


def test_quantized_checkpoints_are_refused_by_name() -> None:
    config = {**checkpoint("llama").config, "quantization_config": {"quant_method": "quip", "bits": 4}}
    spec = ModelSpec.from_config(config)
    backend = create_attention_backend("reference", "cpu")
    with pytest.raises(UnsupportedWeightFormat, match="'quip'"):
        build_model(spec, dtype=torch.float32, device="cpu", attention=backend, source=DictSource({}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek-v3", "mixtral"])
def test_dummy_weights_are_uniform_small_and_the_same_every_time(name: str) -> None:
    first, second = build(None, name, torch.bfloat16), build(None, name, torch.bfloat16)
    for (label, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.abs().max() <= 1.001e-3, label
        assert (a != 0).float().mean() > 0.99, label
        assert a.float().std() == pytest.approx(1e-3 / 3**0.5, rel=0.35), label


def test_dummy_weights_differ_between_parameters() -> None:
    layers = build(None).layers
    assert not torch.equal(layers[0].input_norm.weight, layers[1].input_norm.weight)


def test_memory_counts_every_weight() -> None:
    spec = ModelSpec.from_config(checkpoint("llama").config)
    assert build(None).memory_bytes() == 4 * spec.num_params


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("llama", 3, "attention heads"),
        ("llama", 8, "attention heads"),
        ("deepseek-v2", 3, "attention heads"),
    ],
)
def test_a_number_of_ranks_that_does_not_divide_the_model_is_refused(name: str, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        empty_decoder(name, 0, size)
    assert error.value.param == "tensor_parallel_size"

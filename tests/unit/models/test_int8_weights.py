"""W8A8 checkpoints of compressed-tensors: what is recognized, what is refused, and that results are those of the rounded model."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers_harness import DictSource

from trivium.arch.spec import ModelSpec
from trivium.errors import UnsupportedWeightFormat, WeightError
from trivium.layers.base import BuildContext
from trivium.layers.linear import Linear as LinearLayer
from trivium.layers.linear import Rows
from trivium.layers.quantized import QuantizedLinear
from trivium.models import Model, build_model
from trivium.ops import dispatch
from trivium.ops.attention import create_attention_backend
from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.collective import ParallelContext
from trivium.ops.linear import int8_linear_reference
from trivium.weights.layouts.compressed import W8A8Layout

EIGHT = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**EIGHT, "strategy": "channel", "dynamic": False},
            "input_activations": {**EIGHT, "strategy": "token", "dynamic": True},
        }
    },
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "quantization_config": QUANTIZATION,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """CONFIG with one entry below `quantization_config` replaced."""
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".")
    at = config["quantization_config"]
    for parent in parents:
        at = at[parent]
    at[last] = value
    return config


def checkpoint(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    spec = ModelSpec.from_config(plain)
    tensors: dict[str, torch.Tensor] = {}
    # Names and shapes as a plain model asks for them; the packed layers have forgotten theirs, so that a fresh one is asked.
    with dispatch.references_only("cpu"):
        model = build_model(spec, dtype=torch.float32, device="cpu", attention=create_attention_backend("reference", "cpu"), source=None)
    for _, layer in model.walk():
        for slot in layer.slots():
            value = torch.randn(slot.shape) * (0.3 if len(slot.shape) == 2 else 1.0)
            if slot.name.endswith("_proj.weight"):
                scale = value.abs().amax(dim=1, keepdim=True) / 127
                tensors[slot.name] = (value / scale).round().to(torch.int8)
                tensors[slot.name.replace(".weight", ".weight_scale")] = scale
            else:
                tensors[slot.name] = value
    return tensors


def load(tensors: dict[str, torch.Tensor], *, backend: str = "auto", dtype: torch.dtype = torch.float32) -> Model:
    attention = create_attention_backend(backend, "cpu")
    return build_model(ModelSpec.from_config(CONFIG), dtype=dtype, device="cpu", attention=attention, source=DictSource(tensors))


def logits(model: Model, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    starts = torch.tensor([0, 9], dtype=torch.int32)
    batch = ForwardBatch(
        input_ids=torch.arange(9, dtype=torch.int32),
        positions=torch.arange(9),
        slots=torch.arange(16, 25),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        query_starts=starts,
        seq_lens=starts[1:],
        logits_indices=torch.arange(9),
        num_decodes=0,
        max_query_len=9,
        max_seq_len=9,
        block_size=16,
    )
    caches = [KVCache(*(torch.zeros(2, 2, 16, 16, dtype=dtype) for _ in range(2))) for _ in range(2)]
    model.layers[0].attention.backend.plan(batch)  # pyright: ignore[reportAttributeAccessIssue]
    return model.compute_logits(model.forward(batch, caches))


def test_results_are_those_of_the_rounded_model() -> None:
    tensors = checkpoint(CONFIG)
    fast = load(tensors)
    with dispatch.references_only("cpu"):
        reference = logits(load(tensors, backend="reference"))
    torch.testing.assert_close(logits(fast), reference, rtol=1e-3, atol=1e-2 * float(reference.std()))
    fast.fused = None
    torch.testing.assert_close(logits(fast), reference, rtol=1e-3, atol=1e-2 * float(reference.std()))
    assert (logits(load(tensors, dtype=torch.bfloat16), torch.bfloat16) - reference).std() < 0.1 * reference.std()


def test_a_checkpoint_without_scales_is_refused() -> None:
    tensors = checkpoint(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]
    with pytest.raises(WeightError, match=r"model\.layers\.1\.mlp\.up_proj\.weight_scale"):
        load(tensors)


GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kv_cache_scheme", {"num_bits": 8}),
        (f"{GROUP}.weights.num_bits", 4),
        (f"{GROUP}.weights.strategy", "group"),
        (f"{GROUP}.weights.symmetric", False),
        (f"{GROUP}.input_activations.dynamic", False),
        (f"{GROUP}.input_activations.strategy", "tensor"),
        (f"{GROUP}.output_activations", EIGHT),
    ],
)
def test_other_schemes_are_refused_by_name(path: str, value: Any) -> None:
    spec = ModelSpec.from_config(changed(path, value))
    assert spec.quantization is not None and spec.quantization.method == "compressed-tensors"
    with pytest.raises(UnsupportedWeightFormat, match="compressed-tensors"):
        build_model(spec, dtype=torch.float32, device="cpu", attention=create_attention_backend("auto", "cpu"), source=DictSource({}))


@pytest.mark.parametrize("fast", [True, False])
def test_shards_of_a_row_parallel_layer_add_up(fast: bool) -> None:
    torch.manual_seed(1)
    weight, scale, bias = torch.randint(-127, 128, (24, 16), dtype=torch.int8), torch.rand(24, 1), torch.randn(24)
    x = torch.randint(-127, 128, (5, 16)).float()
    x[:, 0] = x[:, 8] = 127  # both halves of a row have its largest magnitude, so that they are rounded alike
    parts = []
    for rank in range(2):
        context = BuildContext(
            dtype=torch.float32,
            device=torch.device("cpu"),
            parallel=ParallelContext(rank, 2, object()),
            attention=create_attention_backend("reference", "cpu"),
            rope_table=lambda _: None,  # type: ignore[arg-type,return-value]
            linear_method=lambda _: QuantizedLinear(lambda _: W8A8Layout()),
        )
        layer = LinearLayer(context, [Rows("m", 24, ((0, 24),))], 16, columns=(8 * rank, 8 * rank + 8), has_bias=True)
        for slot in layer.slots():
            slot.load({"m.weight": weight, "m.weight_scale": scale, "m.bias": bias}[slot.name])
        with nullcontext() if fast else dispatch.references_only("cpu"):
            layer.finish()
        parts.append(layer(x[:, 8 * rank : 8 * rank + 8]))
    torch.testing.assert_close(parts[0] + parts[1], int8_linear_reference(x, weight, scale, bias), rtol=1e-5, atol=1e-3)

"""`build_model`: from a spec and a weight source to a model that can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch

from trivium.arch.quantization import GgmlScheme, QuantizationSpec
from trivium.arch.rope import RopeSpec
from trivium.arch.spec import ModelSpec
from trivium.layers.base import BuildContext, RopeTable
from trivium.layers.linear import LinearMethod, PlainLinear
from trivium.layers.quantized import QuantizedLinear
from trivium.models.decoder import Decoder
from trivium.models.fused import try_fuse
from trivium.models.loader import ProgressCallback, fill_dummy, load_weights
from trivium.models.registry import create_layout
from trivium.ops.attention.base import AttentionBackend
from trivium.ops.collective import ParallelContext
from trivium.ops.rope import cos_sin_table
from trivium.weights.dequantizing import DequantizingSource
from trivium.weights.gguf import GGUFSource
from trivium.weights.layouts import WeightLayout, layout_of
from trivium.weights.layouts.plain import dummy_layout

if TYPE_CHECKING:
    from trivium.weights.source import WeightSource

Model = Decoder
"""What the engine runs: `forward(batch, caches)`, `compute_logits(hidden)`, `named_parameters()`, `memory_bytes()`."""


@torch.inference_mode()
def build_model(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    parallel: ParallelContext | None = None,
    attention: AttentionBackend,
    source: WeightSource | None,
    progress: ProgressCallback | None = None,
    dequantize: bool = False,
) -> Model:
    """A model with its weights on `device` in `dtype`, or as `spec.quantization` says; with `dequantize`, all of them plain.

    `source` None: dummy weights. `progress(stage, done, total)` counts bytes read. Raises `WeightError` for a checkpoint that doesn't fit
    the spec, `UnsupportedWeightFormat` for a quantized format we don't have, `ConfigError` for a number of ranks that doesn't divide the
    model.
    """
    context = BuildContext(
        dtype=dtype,
        device=torch.device(device),
        parallel=parallel or ParallelContext(),
        attention=attention,
        rope_table=_rope_tables(spec.max_model_len, torch.device(device)),
        linear_method=_linear_method(None if dequantize else spec.quantization, source),
    )
    layout = create_layout(spec)
    model = Decoder(spec, layout, context)
    if source is None:
        fill_dummy(model)
    else:
        if spec.quantization is not None:
            source = DequantizingSource(source, spec.quantization, _plain_tensors(model))
        load_weights(model, layout, source, progress, tied_head=f"{layout.head}.weight" if spec.tie_embeddings else "")
    model.fused = try_fuse(model)
    return model


def _linear_method(quantization: QuantizationSpec | None, source: WeightSource | None) -> Callable[[Sequence[str]], LinearMethod]:
    """By the checkpoint matrices of a layer: plain if all of them are."""
    plain = PlainLinear()
    if quantization is None:
        return lambda names: plain

    @cache
    def layout(name: str) -> WeightLayout | None:
        scheme = quantization.scheme(name)
        if isinstance(scheme, GgmlScheme):
            assert source is None or isinstance(source, GGUFSource)
            return None if source is None else source.keep_packed(f"{name}.weight", scheme.packed)
        return None if scheme is None else dummy_layout(scheme) if source is None else layout_of(scheme)

    quantized = QuantizedLinear(layout)
    return lambda names: quantized if any(layout(name) is not None for name in names) else plain


def _plain_tensors(model: Decoder) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what the model's layers copy, rather than keep in the checkpoint's layout."""
    slots = [slot for _, layer in model.walk() for slot in layer.slots()]
    return {slot.name: slot.shape for slot in slots if slot.keep is None and slot.shape is not None}


def _rope_tables(num_positions: int, device: torch.device) -> Callable[[RopeSpec], RopeTable]:
    tables: dict[RopeSpec, RopeTable] = {}

    def table(spec: RopeSpec) -> RopeTable:
        if spec not in tables:
            tables[spec] = RopeTable(cos_sin_table(spec, num_positions, device), spec.rotary_dim, spec.interleaved)
        return tables[spec]

    return table

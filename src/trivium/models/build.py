"""`build_model`: from a spec and a weight source to a model that can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from trivium.arch.quantization import W8A8_INT8
from trivium.arch.rope import RopeSpec
from trivium.arch.spec import AttentionSpec, FeedForwardSpec, ModelSpec
from trivium.errors import UnsupportedWeightFormat
from trivium.layers.base import BuildContext, RopeTable
from trivium.layers.int8 import Int8Linear
from trivium.layers.linear import LinearMethod, PlainLinear
from trivium.models.decoder import Decoder
from trivium.models.fused import try_fuse
from trivium.models.loader import ProgressCallback, fill_dummy, load_weights
from trivium.models.registry import create_layout
from trivium.ops.attention.base import AttentionBackend
from trivium.ops.collective import ParallelContext
from trivium.ops.rope import cos_sin_table

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
) -> Model:
    """A model with its weights on `device` in `dtype`.

    `source` None: dummy weights. `progress(stage, done, total)` counts bytes read. Raises `WeightError` for a checkpoint that doesn't fit
    the spec, `UnsupportedWeightFormat` for quantized weights, `ConfigError` for a number of ranks that doesn't divide the model.
    """
    method = PlainLinear() if source is None else _linear_method(spec)
    context = BuildContext(
        dtype=dtype,
        device=torch.device(device),
        parallel=parallel or ParallelContext(),
        attention=attention,
        rope_table=_rope_tables(spec.max_model_len, torch.device(device)),
        linear_method=lambda name: method,
    )
    layout = create_layout(spec)
    model = Decoder(spec, layout, context)
    if source is None:
        fill_dummy(model)
    else:
        load_weights(model, layout, source, progress, tied_head=f"{layout.head}.weight" if spec.tie_embeddings else "")
    model.fused = try_fuse(model)
    return model


def _linear_method(spec: ModelSpec) -> LinearMethod:
    if spec.quantization is None:
        return PlainLinear()
    if spec.quantization != W8A8_INT8:
        raise UnsupportedWeightFormat(f"Weights quantized with {spec.quantization!r} are not supported.")
    if any(not isinstance(layer.attention, AttentionSpec) or not isinstance(layer.feed_forward, FeedForwardSpec) for layer in spec.layers):
        raise UnsupportedWeightFormat("int8 weights are supported for dense models only, not for mixtures of experts or latent attention.")
    return Int8Linear()


def _rope_tables(num_positions: int, device: torch.device) -> Callable[[RopeSpec], RopeTable]:
    tables: dict[RopeSpec, RopeTable] = {}

    def table(spec: RopeSpec) -> RopeTable:
        if spec not in tables:
            tables[spec] = RopeTable(cos_sin_table(spec, num_positions, device), spec.rotary_dim, spec.interleaved)
        return tables[spec]

    return table

"""One decoder layer quantized with what it is given: which matrices belong together, and what AWQ may scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trivium.layers.attention import Attention
from trivium.layers.feed_forward import FeedForward
from trivium.layers.linear import Linear
from trivium.layers.norm import RMSNorm
from trivium.models.decoder import DecoderLayer
from trivium.ops.attention.base import KVCache
from trivium.quantization.awq import search_factors
from trivium.quantization.calibration import CalibrationRun, Inputs
from trivium.quantization.gptq import gptq
from trivium.quantization.rounding import Rounded, round_groups

Quantized = list[tuple[Linear, Rounded]]
"""Each with all of the layer's rows."""
QuantizeLayer = Callable[[CalibrationRun, DecoderLayer, KVCache], Quantized]


def linears_of(layer: DecoderLayer) -> list[Linear]:
    """In the order in which they see the stream."""
    attention, feed_forward = layer.attention, layer.feed_forward
    assert isinstance(attention, Attention) and isinstance(feed_forward, FeedForward)
    return [attention.qkv, attention.output, feed_forward.gate_up, feed_forward.down]


def quantize_by_gptq(run: CalibrationRun, layer: DecoderLayer, cache: KVCache, *, group: int, act_order: bool) -> Quantized:
    """Inputs are those that the rounded layers before leave to this one, while it is whole."""
    linears = linears_of(layer)
    found: Quantized = []
    for linear, inputs in zip(linears, run.look(layer, cache, linears), strict=True):
        rounded = gptq(_weight(linear), inputs.hessian, group or linear.in_features, act_order=act_order)
        _weight(linear).copy_(rounded.dequantize())
        found.append((linear, rounded))
    return found


def quantize_by_awq(run: CalibrationRun, layer: DecoderLayer, cache: KVCache, *, group: int) -> Quantized:
    """Scales first, while the layer is whole: they leave its results as they are. Then every matrix is rounded."""
    linears = linears_of(layer)
    inputs = run.look(layer, cache, linears)
    feeding = (_scale_norm(layer.input_norm), _scale_values(layer), _scale_norm(layer.feed_forward_norm), _scale_up(layer))
    for linear, own, divide in zip(linears, inputs, feeding, strict=True):
        if divide is not None:
            _apply_factors(linear, own, divide, group or linear.in_features)
    found: Quantized = []
    for linear, own in zip(linears, inputs, strict=True):
        rounded = round_groups(_weight(linear), group or linear.in_features, own.hessian.diagonal())
        _weight(linear).copy_(rounded.dequantize())
        found.append((linear, rounded))
    return found


def _apply_factors(linear: Linear, inputs: Inputs, divide: Callable[[Tensor], None], group: int) -> None:
    """`divide` makes what feeds `linear` smaller. Recorded inputs are divided along."""
    weight = _weight(linear)
    factors = search_factors(weight, inputs, group)
    weight.mul_(factors.to(weight.dtype))
    divide(factors)
    inputs.rows.div_(factors.to(inputs.rows.dtype))
    inputs.magnitude.div_(factors)
    inputs.hessian.div_(factors.unsqueeze(0) * factors.unsqueeze(1))


def _scale_norm(norm: RMSNorm) -> Callable[[Tensor], None]:
    def scale(factors: Tensor) -> None:
        norm.weight.copy_((norm.weight.float() + norm.offset) / factors - norm.offset)

    return scale


def _scale_values(layer: DecoderLayer) -> Callable[[Tensor], None] | None:
    """Values feed the output projection input by input where no two query heads share one."""
    attention = layer.attention
    assert isinstance(attention, Attention)
    if attention.args.num_heads != attention.args.num_kv_heads or layer.post_attention_norm is not None:
        return None
    return _scale_last_rows(attention.qkv)


def _scale_up(layer: DecoderLayer) -> Callable[[Tensor], None]:
    feed_forward = layer.feed_forward
    assert isinstance(feed_forward, FeedForward)
    return _scale_last_rows(feed_forward.gate_up)


def _scale_last_rows(linear: Linear) -> Callable[[Tensor], None]:
    def scale(factors: Tensor) -> None:
        for tensor in (_weight(linear), linear.bias):
            if tensor is not None:
                rows = tensor[-len(factors) :]
                rows.div_(factors.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1)))

    return scale


def _weight(linear: Linear) -> Tensor:
    assert linear.weight is not None, "weights are not packed here"
    return linear.weight


def split_by_matrix(linear: Linear, rounded: Rounded) -> dict[str, Rounded]:
    """Checkpoint matrix → its rows. The whole model is on this rank, so that each matrix is one run of rows."""
    found: dict[str, Rounded] = {}
    start = 0
    for part in linear.rows:
        rows = slice(start, start + part.count)
        assert part.count == part.total
        found[part.name] = Rounded(rounded.codes[rows], rounded.scales[rows], rounded.zeros[rows], rounded.groups)
        start += part.count
    return found


def changed_tensors(layer: DecoderLayer) -> dict[str, Tensor]:
    """Plain tensors of the layer that AWQ may have scaled, by checkpoint name."""
    found = {f"{norm.name}.weight": norm.weight for norm in (layer.input_norm, layer.feed_forward_norm)}
    for linear in linears_of(layer):
        if linear.bias is not None:
            start = 0
            for part in linear.rows:
                found[f"{part.name}.bias"] = linear.bias[start : start + part.count]
                start += part.count
    return {name: tensor.detach().clone() for name, tensor in found.items()}


@torch.inference_mode()
def quantize_layer(quantize: QuantizeLayer, run: CalibrationRun, layer: DecoderLayer, cache: KVCache) -> dict[str, Rounded]:
    """Rounds the layer's matrices in place and moves the streams behind it."""
    found: dict[str, Rounded] = {}
    for linear, rounded in quantize(run, layer, cache):
        found |= split_by_matrix(linear, rounded)
    run.advance(layer, cache)
    return found

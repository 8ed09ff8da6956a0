"""A decoder's layers as one call: structures filled once, a parallel region a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu import library
from trivium.ops.cpu.elementwise import ACTIVATIONS, MAX_HEAD_DIM
from trivium.ops.cpu.library import TYPES, loaded
from trivium.ops.cpu.linear import PANEL, PackedLinear, padded
from trivium.ops.cpu.quantized import CPUQuantized
from trivium.ops.decoder import DecoderParts, FusedLayers, LayerParts, Projection


def try_fuse(parts: DecoderParts) -> FusedLayers | None:
    """None if a weight isn't packed for the CPU or a size doesn't fit the kernels."""
    return CPUDecoder(parts) if parts.layers and all(_fits(layer, parts.final_norm) for layer in parts.layers) else None


def _fits(layer: LayerParts, final_norm: Tensor) -> bool:
    dtype, hidden = final_norm.dtype, final_norm.shape[0]
    projections = (layer.qkv, layer.output, layer.gate_up, layer.down)
    norms = (layer.input_norm, layer.feed_forward_norm, layer.post_attention_norm, layer.post_feed_forward_norm, layer.q_norm, layer.k_norm)
    weights = [projection.weight for projection in projections]
    known = [weight for weight in weights if isinstance(weight, PackedLinear | CPUQuantized) and _is_ready(weight, dtype)]
    if len(known) < len(weights):
        return False
    sizes = [(weight.num_in, weight.num_out) for weight in known]
    args, (qkv, output, gate_up, down) = layer.attention, sizes
    assert qkv == (hidden, (args.num_heads + 2 * args.num_kv_heads) * args.head_dim) and output == (args.num_heads * args.head_dim, hidden)
    assert gate_up == (hidden, 2 * down[0]) and down[1] == hidden
    is_even = all(num_in % 2 == 0 for num_in, _ in sizes)  # bf16 is read in pairs
    return (
        is_even
        and down[0] % PANEL == 0
        and args.head_dim <= MAX_HEAD_DIM
        and all(norm is None or (norm.dtype == dtype and norm.is_contiguous()) for norm in norms)
    )


def _is_ready(weight: PackedLinear | CPUQuantized, dtype: torch.dtype) -> bool:
    """Whether it multiplies rows of type `dtype` as they are."""
    if isinstance(weight, PackedLinear):
        return weight.dtype in (dtype, torch.int8)
    return weight.dtype == dtype and weight.order is None and weight.width == weight.num_in


class CPUDecoder:
    """Keeps the tensors whose addresses it hands over."""

    def __init__(self, parts: DecoderParts) -> None:
        self.parts = parts
        self.hidden = parts.final_norm.shape[0]
        self.dtype = parts.final_norm.dtype
        self._biases: list[Tensor] = []
        self._layers = (library.DecoderLayer * len(parts.layers))(*(self._layer(layer) for layer in parts.layers))
        self._caches: Sequence[KVCache] | None = None
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self._num_blocks = self._block_size = 0

    def __call__(self, embeddings: Tensor, batch: ForwardBatch, caches: Sequence[KVCache]) -> Tensor:
        if caches is not self._caches:
            self._bind(caches)
        tokens, rows = embeddings.shape[0], batch.num_rows
        assert embeddings.shape == (tokens, self.hidden) and embeddings.dtype == self.dtype and embeddings.is_contiguous()
        tables = batch.block_tables
        for tensor, length in ((batch.positions, tokens), (batch.slots, tokens)):
            assert tensor.dtype == torch.int64 and tensor.shape == (length,) and tensor.is_contiguous()
        for tensor, length in ((batch.query_starts, rows + 1), (batch.seq_lens, rows)):
            assert tensor.dtype == torch.int32 and tensor.shape == (length,) and tensor.is_contiguous()
        assert tables.dtype == torch.int32 and tables.shape[0] >= rows and tables.stride(1) == 1
        assert batch.block_size == self._block_size
        assert rows == 0 or (int(batch.query_starts[0]) == 0 and int(batch.query_starts[-1]) <= tokens)
        out = torch.empty_like(embeddings)
        step = library.DecoderStep(
            self._layers,
            self.parts.final_norm.data_ptr(),
            embeddings.data_ptr(),
            out.data_ptr(),
            None,
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            tables.data_ptr(),
            batch.query_starts.data_ptr(),
            batch.seq_lens.data_ptr(),
            tables.stride(0),
            self._num_blocks,
            len(self._layers),
            tokens,
            rows,
            self.hidden,
            self._block_size,
            ACTIVATIONS[self.parts.activation],
            self.parts.norm_eps,
            self.parts.norm_offset,
        )
        number = TYPES[self.dtype]
        needed = loaded().decoder_workspace(number, ctypes.byref(step)) + 64
        if self._workspace.numel() < needed:
            self._workspace = torch.empty(needed, dtype=torch.uint8)
        step.workspace = -(-self._workspace.data_ptr() // 64) * 64
        failed = loaded().decoder(number, ctypes.byref(step), torch.get_num_threads())
        assert not failed, "an index of the batch lies outside its table"
        return out

    def _layer(self, layer: LayerParts) -> library.DecoderLayer:
        args = layer.attention
        assert layer.cos_sin.dtype == torch.float32 and layer.cos_sin.is_contiguous()
        assert layer.cos_sin.shape[1] == layer.rotary_dim <= args.head_dim and layer.rotary_dim % 2 == 0
        return library.DecoderLayer(
            *(self._projection(projection) for projection in (layer.qkv, layer.output, layer.gate_up, layer.down)),
            layer.input_norm.data_ptr(),
            layer.feed_forward_norm.data_ptr(),
            _pointer(layer.post_attention_norm),
            _pointer(layer.post_feed_forward_norm),
            _pointer(layer.q_norm),
            _pointer(layer.k_norm),
            layer.cos_sin.data_ptr(),
            None,
            None,
            layer.cos_sin.shape[0],
            args.num_heads,
            args.num_kv_heads,
            args.head_dim,
            layer.rotary_dim,
            layer.interleaved,
            args.window or 0,
            args.scale,
            args.softcap or 0.0,
        )

    def _projection(self, projection: Projection) -> library.Projection:
        weight = projection.weight
        bias = None
        if projection.bias is not None:
            assert isinstance(weight, PackedLinear | CPUQuantized)
            bias = padded(projection.bias, weight.num_out, torch.float32)
            self._biases.append(bias)
        if isinstance(weight, CPUQuantized):
            return library.Projection(None, _pointer(bias), None, None, ctypes.addressof(weight.struct), weight.num_out, weight.num_in)
        assert isinstance(weight, PackedLinear)
        scale, total = _pointer(weight.scale), _pointer(weight.sum)
        return library.Projection(weight.data.data_ptr(), _pointer(bias), scale, total, None, weight.num_out, weight.num_in)

    def _bind(self, caches: Sequence[KVCache]) -> None:
        assert len(caches) == len(self._layers)
        self._num_blocks, _, self._block_size, _ = caches[0].key.shape
        for struct, cache, layer in zip(self._layers, caches, self.parts.layers, strict=True):
            args = layer.attention
            assert cache.value is not None
            for half in (cache.key, cache.value):
                assert half.shape == (self._num_blocks, args.num_kv_heads, self._block_size, args.head_dim)
                assert half.dtype == self.dtype and half.is_contiguous()
            # Small pages on purpose: a huge one is zeroed whole when the first token touches it, at once for all layers, in the middle of a
            # prompt; small ones cost 1 ms for 128 tokens. Weights, which are read whole in every step, are another matter.
            struct.key, struct.value = cache.key.data_ptr(), cache.value.data_ptr()
        self._caches = caches


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

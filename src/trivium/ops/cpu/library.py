"""The loaded library: its functions and the structures they take, one to one with `kernels/*.h`."""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

import torch

from trivium.ops.cpu.build import BuildError, build

log = logging.getLogger(__name__)

TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Types of tensors the kernels take, and their numbers."""


class NormArgs(Structure):
    _fields_ = [
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("residual_stride", c_int64),
        ("out_stride", c_int64),
        ("rows", c_int32),
        ("n", c_int32),
        ("eps", c_float),
        ("offset", c_float),
    ]


class QKVArgs(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "cos_sin", "positions", "slots", "q_norm", "k_norm", "key", "value", "query")),
        *((name, c_int64) for name in ("qkv_stride", "num_slots", "max_positions")),
        *((name, c_int32) for name in ("rows", "heads", "kv_heads", "dim", "block_size", "rotary_dim", "interleaved")),
        ("eps", c_float),
        ("offset", c_float),
    ]


class LinearArgs(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "weight", "bias", "out", "residual", "x_scale", "w_scale", "w_sum")),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        *((name, c_int32) for name in ("rows", "n", "k", "epilogue", "activation", "out_float")),
    ]


class QuantizedWeight(Structure):
    _fields_ = [*((name, c_void_p) for name in ("codes", "scales", "zeros", "table")), ("group", c_int32), ("kind", c_int32)]


class AttentionArgs(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("query", "key", "value", "block_tables", "query_starts", "seq_lens", "out")),
        ("table_stride", c_int64),
        ("num_blocks", c_int64),
        *((name, c_int32) for name in ("rows", "heads", "kv_heads", "dim", "block_size", "window")),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class Projection(Structure):
    _fields_ = [*((name, c_void_p) for name in ("weight", "bias", "scale", "sum", "quantized")), ("n", c_int32), ("k", c_int32)]


class DecoderLayer(Structure):
    _fields_ = [
        *((name, Projection) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "feed_forward_norm", "post_attention_norm", "post_feed_forward_norm")),
        *((name, c_void_p) for name in ("q_norm", "k_norm", "cos_sin", "key", "value")),
        ("max_positions", c_int64),
        *((name, c_int32) for name in ("heads", "kv_heads", "dim", "rotary_dim", "interleaved", "window")),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class DecoderStep(Structure):
    _fields_ = [
        ("layers", POINTER(DecoderLayer)),
        *((name, c_void_p) for name in ("final_norm", "residual", "out", "workspace")),
        *((name, c_void_p) for name in ("positions", "slots", "block_tables", "query_starts", "seq_lens")),
        *((name, c_int64) for name in ("table_stride", "num_blocks")),
        *((name, c_int32) for name in ("num_layers", "tokens", "rows", "hidden", "block_size", "activation")),
        ("eps", c_float),
        ("offset", c_float),
    ]


class Kernels:
    """The functions of the library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        library = ctypes.CDLL(str(path))

        def function(name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
            found = getattr(library, f"trivium_{name}")
            found.restype, found.argtypes = result, arguments
            return found

        self.rms_norm = function("rms_norm", None, c_int, POINTER(NormArgs), c_int)
        self.act_and_mul = function("act_and_mul", None, c_int, c_void_p, c_int64, c_void_p, c_int, c_int, c_int, c_int)
        self.prepare_qkv = function("prepare_qkv", c_int, c_int, POINTER(QKVArgs), c_int)
        self.packed_entries = function("packed_entries", c_int64, c_int, c_int64, c_int64)
        self.pack_weight = function("pack_weight", None, c_int, c_void_p, c_int64, c_int, c_int, c_void_p, c_int)
        self.linear = function("linear", None, c_int, POINTER(LinearArgs), c_int)
        self.quantized_linear = function("quantized_linear", None, c_int, POINTER(LinearArgs), POINTER(QuantizedWeight), c_int)
        self.attention = function("attention", c_int, c_int, POINTER(AttentionArgs), c_int)
        self.decoder_workspace = function("decoder_workspace", c_int64, c_int, POINTER(DecoderStep))
        self.decoder = function("decoder", c_int, c_int, POINTER(DecoderStep), c_int)
        features = function("features", c_char_p)()
        assert isinstance(features, bytes)
        self.features = features.decode()
        """The instruction set it was compiled for: avx512_bf16, avx512, avx2 or generic."""


_loaded: list[Kernels | None] = []


def kernels() -> Kernels | None:
    """The library, built on the first call if need be; None where that can't be done (logged once)."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def loaded() -> Kernels:
    """The library, known to be there."""
    found = kernels()
    assert found is not None, "CPU kernels are called only where fast_paths() offers them"
    return found


def _load() -> Kernels | None:
    try:
        return Kernels(build())
    except (BuildError, OSError) as error:
        log.warning("The CPU kernels are not available: %s. The model runs on plain torch, several times slower.", error)
        return None

"""Norms, the gated activation, and rotation with the write into the cache: tensors checked, pointers handed over.

Signatures as in `trivium.ops`; what the kernels don't take (other types, unusual layouts) goes to the references.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trivium.ops.activation import act_and_mul_reference
from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.cpu.library import TYPES, NormArgs, QKVArgs, loaded
from trivium.ops.norm import add_rms_norm_reference, rms_norm_reference
from trivium.ops.qkv import prepare_qkv_reference

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
MAX_HEAD_DIM = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> Tensor:
    if not _rows_are_dense(x) or not _is_vector(weight, x):
        return rms_norm_reference(x, weight, eps, offset=offset)
    flat = x.view(-1, x.shape[-1]) if x.is_contiguous() else x
    if flat.dim() != 2:
        return rms_norm_reference(x, weight, eps, offset=offset)
    out = torch.empty(x.shape, dtype=x.dtype)
    _norm(flat, None, weight, out, eps, offset)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """`residual` is overwritten."""
    fits = x.dim() == 2 and residual.shape == x.shape and residual.dtype == x.dtype and _rows_are_dense(x) and _rows_are_dense(residual)
    if not fits or not _is_vector(weight, x):
        return add_rms_norm_reference(x, residual, weight, eps, offset=offset)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _norm(x, residual, weight, out, eps, offset)
    return out, residual


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float, offset: float) -> None:
    args = NormArgs(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        x.shape[-1],
        x.shape[0],
        x.shape[-1],
        eps,
        offset,
    )
    loaded().rms_norm(TYPES[x.dtype], ctypes.byref(args), torch.get_num_threads())


def act_and_mul(gate_up: Tensor, kind: str) -> Tensor:
    if gate_up.dim() != 2 or not _rows_are_dense(gate_up) or gate_up.shape[1] % 2:
        return act_and_mul_reference(gate_up, kind)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype)
    loaded().act_and_mul(
        TYPES[gate_up.dtype], gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, width, ACTIVATIONS[kind], torch.get_num_threads()
    )
    return out


def prepare_qkv(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    cache: KVCache,
    args: AttentionArgs,
    *,
    rotary_dim: int,
    interleaved: bool = False,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 1e-6,
    norm_offset: float = 0.0,
) -> Tensor:
    key, value = cache.key, cache.value
    norms = [norm for norm in (q_norm, k_norm) if norm is not None]
    fits = (
        _rows_are_dense(qkv)
        and args.head_dim <= MAX_HEAD_DIM
        and value is not None
        and all(half.dtype == qkv.dtype and half.is_contiguous() for half in (key, value))
        and all(norm.dtype == qkv.dtype and norm.is_contiguous() for norm in norms)
        and positions.dtype == slots.dtype == torch.int64
    )
    if not fits:
        return prepare_qkv_reference(
            qkv,
            cos_sin,
            positions,
            slots,
            cache,
            args,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            q_norm=q_norm,
            k_norm=k_norm,
            norm_eps=norm_eps,
            norm_offset=norm_offset,
        )
    assert value is not None
    rows, dim = qkv.shape[0], args.head_dim
    assert qkv.shape == (rows, (args.num_heads + 2 * args.num_kv_heads) * dim)
    assert key.shape == value.shape == (key.shape[0], args.num_kv_heads, key.shape[2], dim)
    assert positions.shape == slots.shape == (rows,)
    assert positions.is_contiguous() and slots.is_contiguous()
    assert all(norm.shape == (dim,) for norm in norms)
    if cos_sin is not None:
        assert cos_sin.dtype == torch.float32 and cos_sin.is_contiguous() and cos_sin.shape[1] == rotary_dim <= dim and rotary_dim % 2 == 0
    query = torch.empty(rows, args.num_heads, dim, dtype=qkv.dtype)
    call = QKVArgs(
        qkv.data_ptr(),
        _pointer(cos_sin),
        positions.data_ptr(),
        slots.data_ptr(),
        _pointer(q_norm),
        _pointer(k_norm),
        key.data_ptr(),
        value.data_ptr(),
        query.data_ptr(),
        qkv.stride(0),
        key.shape[0] * key.shape[2],
        0 if cos_sin is None else cos_sin.shape[0],
        rows,
        args.num_heads,
        args.num_kv_heads,
        dim,
        key.shape[2],
        rotary_dim,
        interleaved,
        norm_eps,
        norm_offset,
    )
    failed = loaded().prepare_qkv(TYPES[qkv.dtype], ctypes.byref(call), torch.get_num_threads())
    assert not failed, "a position or slot lies outside its table"
    return query


def _rows_are_dense(x: Tensor) -> bool:
    return x.dtype in TYPES and x.dim() >= 1 and x.stride(-1) == 1


def _is_vector(weight: Tensor, x: Tensor) -> bool:
    return weight.dtype == x.dtype and weight.shape == x.shape[-1:] and weight.is_contiguous()


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

"""The gated activation of an MLP: `act(gate) * up` from the packed projection, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, next_pow2, on_device, pdl, run, tanh, wait_and_trigger

KINDS = ("silu", "gelu_tanh", "gelu")


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """float32 in, float32 out."""
    if KIND == "silu":
        value = gate * tl.sigmoid(gate)
    elif KIND == "gelu_tanh":
        value = 0.5 * gate * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    else:
        tl.static_assert(KIND == "gelu")
        value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    return value * up


@triton.jit
def _act_and_mul_kernel(x_ptr, out_ptr, stride_x, N: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    wait_and_trigger(PDL)
    gate = tl.load(x_ptr + row * stride_x + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + N + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + cols, gated(gate, up, KIND).to(out_ptr.dtype.element_ty), mask=mask)


def act_and_mul(gate_up: Tensor, kind: str) -> Tensor:
    """gate_up [T, 2F], the gate first → [T, F]."""
    assert kind in KINDS, kind
    assert gate_up.stride(-1) == 1, "rows must be contiguous"
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows == 0:
        return out
    block = min(next_pow2(width), 2048 if num_rows >= 64 else 1024)
    with on_device(gate_up):
        run(_act_and_mul_kernel, (num_rows, cdiv(width, block)))(
            gate_up, out, gate_up.stride(0), N=width, BLOCK=block, KIND=kind, num_warps=max(1, min(8, block // 256)), **pdl(gate_up)
        )
    return out

"""The gated activation of a feed-forward block."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional

from trivium.ops.dispatch import fast_path

ActivationKind = Literal["silu", "gelu_tanh", "gelu"]
ACTIVATION_KINDS: tuple[str, ...] = get_args(ActivationKind)


def act_and_mul(gate_up: Tensor, kind: str) -> Tensor:
    """gate_up [T, 2F], the gate first → [T, F]: `act(gate) * up`."""
    if fast := fast_path("act_and_mul", gate_up):
        return fast(gate_up, kind)
    return act_and_mul_reference(gate_up, kind)


def act_and_mul_reference(gate_up: Tensor, kind: str) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return _activate(gate, kind) * up


def _activate(x: Tensor, kind: str) -> Tensor:
    if kind == "silu":
        return functional.silu(x)
    if kind == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    assert kind == "gelu", kind
    return functional.gelu(x)

"""Experts on the CPU: every matrix packed, each read once a step for the tokens that chose it."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.activation import act_and_mul
from trivium.ops.cpu.elementwise import ACTIVATIONS
from trivium.ops.cpu.linear import PANEL, PackedLinear, try_pack


class PackedExperts:
    """A token's result depends on nothing but the token: products keep rows apart, and its experts are added up in their order."""

    def __init__(self, gate_up: list[PackedLinear], down: list[PackedLinear]) -> None:
        self.gate_up = gate_up
        self.down = down

    @property
    def nbytes(self) -> int:
        return sum(packed.nbytes for packed in (*self.gate_up, *self.down))

    @property
    def keeps_rows_apart(self) -> bool:
        return all(packed.keeps_rows_apart for packed in (*self.gate_up, *self.down))

    def __call__(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
        """As `ops.moe.fused_moe`."""
        num_choices = topk_ids.shape[1]
        flat_ids, flat_weights = topk_ids.flatten(), topk_weights.flatten()
        order = flat_ids.argsort(stable=True)
        out = torch.zeros(x.shape, dtype=torch.float32)
        start = 0
        for expert, count in enumerate(torch.bincount(flat_ids, minlength=len(self.down)).tolist()):
            if count == 0:
                continue
            picked = order[start : start + count]
            start += count
            tokens = picked // num_choices
            activated = _gated(self.gate_up[expert], x[tokens], kind)
            out.index_add_(0, tokens, self.down[expert].wide(activated) * flat_weights[picked, None])
        return out.to(x.dtype)


def _gated(gate_up: PackedLinear, x: Tensor, kind: str) -> Tensor:
    if gate_up.num_out % (2 * PANEL) == 0:
        return gate_up.gated(x, ACTIVATIONS[kind])
    return act_and_mul(gate_up(x), kind)


def try_pack_experts(gate_up: Tensor, down: Tensor) -> PackedExperts | None:
    """`ops.moe.try_pack_experts` for the CPU: None for types the kernels don't take."""
    packed = [[try_pack(weight) for weight in weights] for weights in (gate_up, down)]
    whole = [[each for each in weights if each is not None] for weights in packed]
    return PackedExperts(*whole) if len(whole[0]) == len(whole[1]) == len(gate_up) else None

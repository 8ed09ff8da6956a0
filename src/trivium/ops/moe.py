"""Mixture of experts: which experts a token goes to, and what they make of it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trivium.arch.spec import RoutingSpec
from trivium.ops.activation import act_and_mul_reference
from trivium.ops.dispatch import fast_path


class PackedExperts(Protocol):
    """The weights of all experts in a layout that only their own products understand."""

    @property
    def nbytes(self) -> int: ...

    @property
    def keeps_rows_apart(self) -> bool:
        """A token's result is the same to the bit whatever tokens are computed with it."""
        ...

    def __call__(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
        """As `fused_moe`."""
        ...


def try_pack_experts(gate_up: Tensor, down: Tensor) -> PackedExperts | None:
    """gate_up [E, 2F, H] and down [E, H, F] packed for this device, or None where the plain layout is as good. The caller may drop them."""
    if fast := fast_path("pack_experts", gate_up):
        return fast(gate_up, down)
    return None


def select_experts(router_logits: Tensor, spec: RoutingSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] → weights [T, K] float32 and expert ids [T, K] int32.

    `bias` [E] float32 is added to the scores when experts are chosen, not when they are weighed (DeepSeek-V3,
    https://arxiv.org/abs/2412.19437, section 2.1.2). Groups as in DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.2.2.
    """
    if fast := fast_path("select_experts", router_logits):
        return fast(router_logits, spec, bias)
    return select_experts_reference(router_logits, spec, bias)


def select_experts_reference(router_logits: Tensor, spec: RoutingSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = router_logits.to(torch.float32)
    scores = logits.softmax(dim=-1) if spec.scoring == "softmax" else _sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if spec.num_groups > 1:
        choice = choice.masked_fill(~_groups_open(choice, spec), float("-inf"))
    ids = choice.topk(spec.top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    if spec.normalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * spec.scale, ids.to(torch.int32)


def _sigmoid(logits: Tensor) -> Tensor:
    """Row by row on a CPU: what torch computes there depends, in the last bit, on where in the whole tensor an entry lies."""
    if logits.device.type != "cpu" or not len(logits):
        return logits.sigmoid()
    return torch.stack([row.sigmoid() for row in logits])


def fused_moe(x: Tensor, gate_up: Tensor, down: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
    """x [T, H], gate_up [E, 2F, H], down [E, H, F], topk_weights and topk_ids [T, K] → [T, H]: each token's experts, weighed and added."""
    if fast := fast_path("fused_moe", x):
        return fast(x, gate_up, down, topk_weights, topk_ids, kind)
    return fused_moe_reference(x, gate_up, down, topk_weights, topk_ids, kind)


def fused_moe_reference(x: Tensor, gate_up: Tensor, down: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
    if x.device.type == "cpu":
        return _moe_by_expert(x, gate_up, down, topk_weights, topk_ids, kind)
    return _moe_dense(x, gate_up, down, topk_weights, topk_ids, kind)


def _groups_open(choice: Tensor, spec: RoutingSpec) -> Tensor:
    """[T, E] bool: experts of the `top_groups` best groups."""
    num_tokens, num_experts = choice.shape
    grouped = choice.view(num_tokens, spec.num_groups, num_experts // spec.num_groups)
    group_scores = grouped.max(dim=-1).values if spec.group_score == "max" else grouped.topk(2, dim=-1).values.sum(dim=-1)
    best = group_scores.topk(spec.top_groups, dim=-1).indices
    is_open = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
    return is_open.repeat_interleave(num_experts // spec.num_groups, dim=-1)


def _moe_by_expert(x: Tensor, gate_up: Tensor, down: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
    """Reads each chosen expert once; the host looks at `topk_ids`, which on a CPU costs nothing."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    order = topk_ids.flatten().argsort(stable=True)
    counts = torch.bincount(topk_ids.flatten(), minlength=gate_up.shape[0]).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        picked = order[start : start + count]
        start += count
        tokens = picked // topk_ids.shape[1]
        hidden = act_and_mul_reference(functional.linear(x[tokens], gate_up[expert]), kind)
        result = functional.linear(hidden, down[expert]).to(torch.float32)
        out.index_add_(0, tokens, result * topk_weights.flatten()[picked, None])
    return out.to(x.dtype)


def _moe_dense(x: Tensor, gate_up: Tensor, down: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
    """Every expert sees every token: slow, but no shape depends on what the device computed."""
    weights = torch.zeros((x.shape[0], gate_up.shape[0]), dtype=torch.float32, device=x.device)
    weights.scatter_add_(1, topk_ids.to(torch.int64), topk_weights.to(torch.float32))
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(gate_up.shape[0]):
        hidden = act_and_mul_reference(functional.linear(x, gate_up[expert]), kind)
        out += functional.linear(hidden, down[expert]).to(torch.float32) * weights[:, expert, None]
    return out.to(x.dtype)

"""Choosing experts and applying them, against loops over tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trivium.arch import RoutingSpec
from trivium.ops.moe import _moe_by_expert, _moe_dense, fused_moe_reference, select_experts_reference


def choose_by_hand(logits: Tensor, spec: RoutingSpec, bias: Tensor | None) -> list[dict[int, float]]:
    """Expert → weight, per token."""
    chosen = []
    for row in logits:
        scores = row.softmax(0) if spec.scoring == "softmax" else row.sigmoid()
        choice = scores + (bias if bias is not None else 0)
        size = len(row) // spec.num_groups
        groups = [sorted(choice[g * size : (g + 1) * size].tolist(), reverse=True) for g in range(spec.num_groups)]
        values = [group[0] if spec.group_score == "max" else group[0] + group[1] for group in groups]
        best = sorted(range(spec.num_groups), key=lambda g: -values[g])[: spec.top_groups]
        allowed = [expert for expert in range(len(row)) if expert // size in best]
        ids = sorted(allowed, key=lambda expert: -float(choice[expert]))[: spec.top_k]
        weights = {expert: float(scores[expert]) for expert in ids}
        total = sum(weights.values()) if spec.normalize else 1.0
        chosen.append({expert: weight / total * spec.scale for expert, weight in weights.items()})
    return chosen


@pytest.mark.parametrize(
    "spec",
    [
        RoutingSpec(top_k=2),
        RoutingSpec(top_k=3, normalize=True),
        RoutingSpec(top_k=3, scale=16.0, num_groups=4, top_groups=2),
        RoutingSpec(top_k=4, scoring="sigmoid", normalize=True, scale=2.5, num_groups=4, top_groups=2, group_score="top2_sum", correction_bias=True),
        RoutingSpec(top_k=1, scoring="sigmoid", correction_bias=True),
    ],
)
def test_experts_are_chosen_as_by_hand(spec: RoutingSpec) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(50, 16, generator=generator)
    bias = torch.randn(16, generator=generator) * 0.5 if spec.correction_bias else None
    weights, ids = select_experts_reference(logits, spec, bias)
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int32
    for expected, row_weights, row_ids in zip(choose_by_hand(logits, spec, bias), weights, ids, strict=True):
        assert dict(zip(row_ids.tolist(), row_weights.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def test_a_bias_that_makes_every_score_negative_opens_no_closed_group() -> None:
    spec = RoutingSpec(top_k=2, scoring="sigmoid", num_groups=2, top_groups=1, group_score="top2_sum", correction_bias=True)
    _, ids = select_experts_reference(torch.tensor([[0.0, 0.0, 5.0, 5.0]]), spec, torch.full((4,), -10.0))
    assert sorted(ids[0].tolist()) == [2, 3]


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_experts_are_applied_as_by_hand(num_tokens: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(num_tokens, 12, generator=generator)
    gate_up, down = torch.randn(5, 14, 12, generator=generator), torch.randn(5, 12, 7, generator=generator)
    weights = torch.rand(num_tokens, 2, generator=generator)
    ids = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(num_tokens)]).to(torch.int32)  # expert 4 idles
    expected = torch.zeros(num_tokens, 12)
    for token in range(num_tokens):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            act = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
            expected[token] += weight * (down[expert] @ (act * up))
    for apply in (fused_moe_reference, _moe_by_expert, _moe_dense):
        torch.testing.assert_close(apply(x, gate_up, down, weights, ids, kind), expected, atol=1e-4, rtol=1e-4)

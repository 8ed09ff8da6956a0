from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, assert_close

from trivium.arch.spec import RoutingSpec
from trivium.ops.moe import select_experts_reference
from trivium.ops.triton.routing import select_experts

SPECS = {
    "mixtral": (8, RoutingSpec(top_k=2, normalize=True)),
    "qwen3": (128, RoutingSpec(top_k=8, normalize=True)),
    "qwen2 (60 experts, no power of two)": (60, RoutingSpec(top_k=4)),
    "one choice, sigmoid": (16, RoutingSpec(top_k=1, scoring="sigmoid")),
    "deepseek v2": (160, RoutingSpec(top_k=6, num_groups=8, top_groups=3, scale=16.0)),
    "deepseek v3": (256, RoutingSpec(top_k=8, scoring="sigmoid", normalize=True, scale=2.5, num_groups=8, top_groups=4, group_score="top2_sum")),
    "groups of 3": (12, RoutingSpec(top_k=3, num_groups=4, top_groups=2)),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_equals_reference(name: str, with_bias: bool) -> None:
    num_experts, spec = SPECS[name]
    logits = torch.randn(9, num_experts, device=DEVICE)
    bias = torch.rand(num_experts, device=DEVICE) * 0.3 if with_bias else None
    weights, ids = select_experts(logits, spec, bias)
    expected_weights, expected_ids = select_experts_reference(logits, spec, bias)
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int32
    assert torch.equal(ids, expected_ids)
    assert_close(weights, expected_weights, 1e-5)


def test_of_equal_scores_the_first_are_taken() -> None:
    logits = torch.zeros(2, 8, device=DEVICE)
    logits[1, 6] = 1.0
    _, ids = select_experts(logits, RoutingSpec(top_k=3))
    assert ids.tolist() == [[0, 1, 2], [6, 0, 1]]


@pytest.mark.filterwarnings("ignore:All-NaN")  # the interpreter's NumPy
def test_a_row_of_nan_stays_nan_and_alone() -> None:
    logits = torch.randn(3, 16, device=DEVICE)
    logits[1] = float("nan")
    spec = RoutingSpec(top_k=4, normalize=True)
    weights, ids = select_experts(logits, spec)
    assert weights[1].isnan().any()
    assert ((ids >= 0) & (ids < 16)).all()
    assert_close(weights[[0, 2]], select_experts_reference(logits[[0, 2]], spec)[0], 1e-5)


def test_rows_with_a_stride_and_no_rows() -> None:
    logits = torch.randn(4, 40, device=DEVICE)
    spec = RoutingSpec(top_k=2)
    assert torch.equal(select_experts(logits[:, :16], spec)[1], select_experts_reference(logits[:, :16], spec)[1])
    assert select_experts(logits[:0], spec)[0].shape == (0, 2)

from __future__ import annotations

import pytest
import torch
from helpers_kernels import DEVICE, ON_GPU, TOLERANCE, assert_close, randn
from torch import Tensor

from trivium.ops.moe import fused_moe_reference
from trivium.ops.triton.moe import MoeConfig, config_for, fused_moe

SMALL = MoeConfig(block_m=16, block_n=64, block_k=32, num_warps=4, num_stages=2)
CASES = [  # tokens, hidden, width, experts, choices
    (1, 64, 32, 4, 2),
    (5, 64, 48, 8, 3),
    (40, 96, 32, 4, 2),
    (7, 32, 64, 3, 1),
] + ([(1, 2048, 768, 128, 8), (64, 2048, 768, 128, 8), (2000, 4096, 1024, 8, 2), (300, 2048, 1408, 64, 6)] if ON_GPU else [])


def inputs(tokens: int, hidden: int, width: int, experts: int, choices: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    scores = torch.rand(tokens, experts, device=DEVICE)
    weights, ids = scores.topk(choices, dim=-1)
    return (
        randn(tokens, hidden),
        randn(experts, 2 * width, hidden, scale=hidden**-0.5),
        randn(experts, hidden, width, scale=width**-0.5),
        weights,
        ids.int(),
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("config", [None, SMALL])
def test_fused_moe_equals_reference(case: tuple[int, int, int, int, int], config: MoeConfig | None) -> None:
    x, gate_up, down, weights, ids = inputs(*case)
    expected = fused_moe_reference(x.float(), gate_up.float(), down.float(), weights, ids, "silu")
    assert_close(fused_moe(x, gate_up, down, weights, ids, "silu", config=config), expected, TOLERANCE)


@pytest.mark.parametrize("block_m", [32, 64])
def test_blocks_of_all_sizes(block_m: int) -> None:
    x, gate_up, down, weights, ids = inputs(50, 64, 32, 4, 2)
    config = MoeConfig(block_m=block_m, block_n=64, block_k=32, num_warps=4, num_stages=2)
    expected = fused_moe_reference(x.float(), gate_up.float(), down.float(), weights, ids, "gelu")
    assert_close(fused_moe(x, gate_up, down, weights, ids, "gelu", config=config), expected, TOLERANCE)


def test_all_tokens_to_one_expert() -> None:
    x, gate_up, down, weights, ids = inputs(37, 64, 32, 6, 1)
    ids.fill_(4)
    expected = fused_moe_reference(x.float(), gate_up.float(), down.float(), weights, ids, "silu")
    assert_close(fused_moe(x, gate_up, down, weights, ids, "silu"), expected, TOLERANCE)


def test_configs_grow_with_the_load() -> None:
    sizes = [config_for(n, 8).block_m for n in (1, 8 * 16, 8 * 40, 8 * 200, 8 * 1000)]
    assert sizes == sorted(sizes)

"""Which experts a token goes to, in one kernel: scores, groups, the best of them and their weights.

A program has one token and all of its scores at once, [groups, experts of a group]; the best are taken out one by one. Of equal scores the
first is taken.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivium.arch.spec import RoutingSpec
from trivium.ops.triton.launch import next_pow2, on_device, pdl, run, wait_and_trigger


@triton.jit
def _first_best(values, places, LAST: tl.constexpr):
    """(largest of the 1-D `values`, the smallest of its `places`); the last place there is if nothing equals the largest (NaN)."""
    best = tl.max(values, axis=0)
    return best, tl.minimum(tl.min(tl.where(values == best, places, LAST), axis=0), LAST)


@triton.jit
def _open_groups(choice, G: tl.constexpr, BLOCK_G: tl.constexpr, PER: tl.constexpr, BLOCK_P: tl.constexpr, TOP: tl.constexpr, BY_MAX: tl.constexpr):
    """`choice` with -inf in all but the TOP best groups: by their best expert, or by the sum of their best two."""
    score = tl.max(choice, axis=1)
    if not BY_MAX:
        inner = tl.arange(0, BLOCK_P)[None, :]
        at = tl.min(tl.where(choice == score[:, None], inner, BLOCK_P), axis=1)
        second = tl.max(tl.where(inner == at[:, None], float("-inf"), choice), axis=1)
        score += second
    groups = tl.arange(0, BLOCK_G)
    score = tl.where(groups < G, score, float("-inf"))
    is_open = tl.zeros([BLOCK_G], tl.int32)
    for _ in tl.static_range(TOP):
        _best, group = _first_best(tl.where(is_open > 0, float("-inf"), score), groups, G - 1)
        is_open = tl.where(groups == group, 1, is_open)
    return tl.where((is_open > 0)[:, None], choice, float("-inf"))


@triton.jit
def _select_kernel(
    logits_ptr, bias_ptr, weights_ptr, ids_ptr, stride, scale,
    G: tl.constexpr, PER: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_P: tl.constexpr, TOP_K: tl.constexpr, BLOCK_K: tl.constexpr,
    TOP_GROUPS: tl.constexpr, BY_MAX: tl.constexpr, SOFTMAX: tl.constexpr, BIAS: tl.constexpr, NORMALIZE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group, inner = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_P)[None, :]
    expert = group * PER + inner
    mask = (group < G) & (inner < PER)
    wait_and_trigger(PDL)
    logits = tl.load(logits_ptr + token * stride + expert, mask=mask, other=float("-inf")).to(tl.float32)
    if SOFTMAX:
        e = tl.exp(logits - tl.max(tl.max(logits, axis=1), axis=0))
        scores = e / tl.sum(tl.sum(e, axis=1), axis=0)
    else:
        scores = tl.sigmoid(logits)
    choice = scores
    if BIAS:
        choice += tl.load(bias_ptr + expert, mask=mask, other=0.0)
    choice = tl.where(mask, choice, float("-inf"))
    if G > 1:
        choice = _open_groups(choice, G, BLOCK_G, PER, BLOCK_P, TOP_GROUPS, BY_MAX)

    choice = tl.reshape(choice, [BLOCK_G * BLOCK_P])
    scores = tl.reshape(scores, [BLOCK_G * BLOCK_P])
    experts = tl.reshape(tl.broadcast_to(expert, [BLOCK_G, BLOCK_P]), [BLOCK_G * BLOCK_P])
    k = tl.arange(0, BLOCK_K)
    ids = tl.zeros([BLOCK_K], tl.int32)
    weights = tl.zeros([BLOCK_K], tl.float32)
    for i in tl.static_range(TOP_K):
        _best, place = _first_best(choice, experts, G * PER - 1)
        is_chosen = (experts == place) & (choice != float("-inf"))  # true for NaN
        choice = tl.where(experts == place, float("-inf"), choice)
        ids = tl.where(k == i, place, ids)
        weights = tl.where(k == i, tl.sum(tl.where(is_chosen, scores, 0.0), axis=0), weights)
    if NORMALIZE:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    tl.store(weights_ptr + token * TOP_K + k, weights * scale, mask=k < TOP_K)
    tl.store(ids_ptr + token * TOP_K + k, ids, mask=k < TOP_K)


def select_experts(router_logits: Tensor, spec: RoutingSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """router_logits [T, E], bias [E] float32 → weights [T, K] float32, ids [T, K] int32. See `ops.moe.select_experts`."""
    assert router_logits.stride(1) == 1
    num_tokens, num_experts = router_logits.shape
    assert num_experts % spec.num_groups == 0 and spec.top_k <= num_experts
    weights = torch.empty(num_tokens, spec.top_k, dtype=torch.float32, device=router_logits.device)
    ids = torch.empty(num_tokens, spec.top_k, dtype=torch.int32, device=router_logits.device)
    if num_tokens == 0:
        return weights, ids
    per_group = num_experts // spec.num_groups
    block_g, block_p = next_pow2(spec.num_groups), next_pow2(per_group)
    with on_device(router_logits):
        run(_select_kernel, (num_tokens,))(
            router_logits, bias if bias is not None else router_logits, weights, ids, router_logits.stride(0), float(spec.scale),
            G=spec.num_groups, PER=per_group, BLOCK_G=block_g, BLOCK_P=block_p, TOP_K=spec.top_k, BLOCK_K=next_pow2(spec.top_k),
            TOP_GROUPS=spec.top_groups, BY_MAX=spec.group_score == "max", SOFTMAX=spec.scoring == "softmax", BIAS=bias is not None,
            NORMALIZE=spec.normalize, num_warps=1 if block_g * block_p <= 128 else 4, **pdl(router_logits),
        )  # fmt: skip
    return weights, ids

"""Which tokens may be drawn: min_p, top_k, top_p and typical_p, in this order, each on the renormalized rest of the one before.

    min_p      p >= min_p * (largest p)
    top_k      logit >= the k-th largest; what ties with it stays
    top_p      the shortest run of most likely tokens that reaches top_p (Holtzman et al. 2020); what ties with its last token stays, so that the
               set does not depend on a sort order
    typical_p  the tokens whose surprise is nearest to the entropy, until they reach typical_p (Meister et al. 2022)

At least one token stays. The first three keep every logit from a *cutoff* upwards, so their result is one number per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.sampling.table import SamplingTable


def cutoffs_reference(logits: Tensor, params: SamplingTable) -> Tensor:
    """logits [S, V] float32 → the smallest logit that min_p, top_k and top_p keep, [S]. Lines without these filters get -inf. By sorting."""
    values = logits.sort(dim=1, descending=True).values
    weights = probability_ratios(values, values[:, :1], params.temperature)
    cut = first_cutoffs(values, params)
    mass = (weights * (values >= cut[:, None])).cumsum(1, dtype=torch.float64)
    last = (mass < params.top_p[:, None] * mass[:, -1:]).sum(1, keepdim=True).clamp_(max=values.shape[1] - 1)
    nucleus = values.gather(1, last).squeeze(1)
    return torch.where(params.top_p < 1, torch.maximum(cut, nucleus), cut)


def first_cutoffs(values: Tensor, params: SamplingTable) -> Tensor:
    """The cutoff of min_p and top_k, [S], from sorted `values` [S, K] that reach at least to the k-th."""
    by_ratio = min_p_cutoffs(values[:, 0], params)
    k = params.top_k.to(torch.int64)[:, None]
    by_rank = values.gather(1, (k - 1).clamp_(0, values.shape[1] - 1))
    return torch.where(k > 0, by_rank, -torch.inf).squeeze(1).maximum(by_ratio)


def min_p_cutoffs(maxima: Tensor, params: SamplingTable) -> Tensor:
    """maxima [S] → the smallest logit that min_p keeps; log(0) is -inf, which keeps all."""
    return maxima + params.temperature * params.min_p.log()


def probability_ratios(values: Tensor, maxima: Tensor, temperature: Tensor) -> Tensor:
    """values [S, K], maxima [S, 1] → p / (largest p) under softmax(logits / temperature)."""
    return ((values - maxima) / temperature[:, None]).exp_()


def surprise_distance(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """scaled [..., K] = logit / temperature, -inf for tokens that are out → (|surprise - entropy|, inf for those; probability)."""
    logprobs = scaled.log_softmax(-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp(min=torch.finfo(torch.float32).min)).sum(-1, keepdim=True)
    return (-logprobs - entropy).abs_(), probs


def typical_mask(scaled: Tensor, kept: Tensor, typical_p: Tensor) -> Tensor:
    """scaled, kept [S, K], typical_p [S] → those of the kept tokens that typical_p keeps. By sorting."""
    distance, probs = surprise_distance(scaled.masked_fill(~kept, -torch.inf))
    ordered, order = distance.sort(dim=1)
    mass = probs.gather(1, order).cumsum(1, dtype=torch.float64)
    last = (mass < typical_p[:, None]).sum(1, keepdim=True).clamp_(max=scaled.shape[1] - 1)
    is_typical = distance <= ordered.gather(1, last)
    return kept & (is_typical | (typical_p >= 1)[:, None])


def keep_mask_reference(logits: Tensor, params: SamplingTable) -> Tensor:
    """logits [S, V] → which tokens may be drawn, [S, V] bool. Any device, no synchronization."""
    kept = logits >= cutoffs_reference(logits, params)[:, None]
    return typical_mask((logits - logits.amax(1, keepdim=True)) / params.temperature[:, None], kept, params.typical_p)

"""The k largest values of each row, cheap on a CPU for small k."""

from __future__ import annotations

import torch
from torch import Tensor

from trivium.ops.sampling.argmax import BLOCK, block_max


def top_values(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """logits [S, V] → (values [S, k], ids [S, k] int64), largest first; the order of equal values is not defined.

    On a CPU the k largest values lie in the k blocks with the largest maxima, and finding those is a fast vectorized pass.
    """
    num_blocks = -(-logits.shape[1] // BLOCK)
    if logits.is_cuda or 4 * k > num_blocks:
        values, ids = logits.topk(k, dim=1)
        return values, ids
    blocks = block_max(logits).topk(k, dim=1, sorted=False).indices
    inside = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    past_end = inside >= logits.shape[1]
    inside.clamp_(max=logits.shape[1] - 1)
    values, where = logits.gather(1, inside).masked_fill_(past_end, -torch.inf).topk(k, dim=1)
    return values, inside.gather(1, where)

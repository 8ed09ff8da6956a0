"""The most likely token of each row, and whether the row can be sampled at all, in one pass over the logits.

torch's argmax on a CPU costs ten times its vectorized maximum. So take maxima of short blocks first and look for the index inside one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64


def block_max(logits: Tensor) -> Tensor:
    """logits [S, V] → maxima of consecutive blocks of 64 (the last may be shorter), [S, ceil(V / 64)]. NaN wins."""
    full = logits.shape[1] // BLOCK * BLOCK
    parts: list[Tensor] = []
    if full:
        parts.append(logits[:, :full].unflatten(1, (-1, BLOCK)).amax(-1))
    if full < logits.shape[1]:
        parts.append(logits[:, full:].amax(-1, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def argmax_rows(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [S, V] float32 → (ids [S] int64, values [S]). The first of equal maxima.

    A value that is not finite marks a row with NaN or +inf, or with nothing but -inf; its id is in range and means nothing.
    """
    maxima = block_max(logits)
    block = maxima.argmax(-1, keepdim=True)
    inside = torch.arange(BLOCK, device=logits.device) + block * BLOCK
    inside.clamp_(max=logits.shape[1] - 1)
    offset = logits.gather(1, inside).argmax(-1, keepdim=True)
    return inside.gather(1, offset).squeeze(1), maxima.gather(1, block).squeeze(1)


def row_maxima(logits: Tensor) -> Tensor:
    """logits [S, V] → [S]; not finite where the row holds NaN or +inf, or nothing but -inf."""
    return logits.amax(-1) if logits.is_cuda else block_max(logits).amax(-1)

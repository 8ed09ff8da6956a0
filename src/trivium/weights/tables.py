"""Tables of 4-bit codes: NF4 (QLoRA, https://arxiv.org/abs/2305.14314, appendix E) and bitsandbytes' FP4."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4_TWELFTHS: Final = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)


def code_table(name: str) -> Tensor:
    """float32 [16]: what each code of "nf4" or "fp4" stands for, in units of its block's largest magnitude."""
    if name == "nf4":
        return torch.tensor(_NF4)
    positive = torch.tensor(_FP4_TWELFTHS) / 12
    return torch.cat((positive, -positive))

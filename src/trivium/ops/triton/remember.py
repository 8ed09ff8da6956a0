"""The end of a captured decode step: sampled tokens to where the next step reads its inputs."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trivium.ops.triton.launch import cdiv, on_device, pdl, run, wait_and_trigger

BLOCK = 256


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows_ptr", "token_ids_ptr", "outcome_ptr", "outcome_out_ptr"])
def _remember_kernel(
    rows_ptr, token_ids_ptr, outcome_ptr, last_tokens_ptr, outcome_out_ptr, count, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    lines = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lines < count
    wait_and_trigger(PDL)
    rows = tl.load(rows_ptr + lines, mask=mask, other=0)
    tokens = tl.load(token_ids_ptr + lines, mask=mask, other=0)
    tl.store(last_tokens_ptr + rows, tokens.to(tl.int32), mask=mask)
    tl.store(outcome_out_ptr + lines, tl.load(outcome_ptr + lines, mask=mask, other=0), mask=mask)


def remember_tokens(rows: Tensor, token_ids: Tensor, outcome: Tensor, last_tokens: Tensor, outcome_out: Tensor) -> None:
    """`last_tokens[rows] = token_ids` and `outcome_out = outcome`. rows, token_ids, outcome, outcome_out [B] int64, last_tokens int32.

    Where a row comes twice (padding), one of its tokens stays.
    """
    count = rows.shape[0]
    with on_device(rows):
        run(_remember_kernel, (max(1, cdiv(count, BLOCK)),))(
            rows, token_ids, outcome, last_tokens, outcome_out, count, BLOCK=BLOCK, num_warps=4, **pdl(rows)
        )

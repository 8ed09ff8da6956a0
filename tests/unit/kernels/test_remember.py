from __future__ import annotations

import torch
from helpers_kernels import DEVICE

from trivium.ops.triton.remember import remember_tokens


def test_tokens_go_to_their_rows_and_outcomes_out() -> None:
    count = 300
    rows = torch.randperm(400, device=DEVICE)[:count]
    tokens = torch.randint(1, 100_000, (count,), device=DEVICE)
    outcome = tokens.where(tokens % 3 > 0, -1)
    last_tokens = torch.full((400,), -7, dtype=torch.int32, device=DEVICE)
    out = torch.full((512,), -7, device=DEVICE)
    remember_tokens(rows, tokens, outcome, last_tokens, out[:count])
    expected = torch.full((400,), -7, dtype=torch.int32, device=DEVICE)
    expected[rows] = tokens.to(torch.int32)
    assert torch.equal(last_tokens, expected)
    assert torch.equal(out[:count], outcome)
    assert (out[count:] == -7).all()

from __future__ import annotations

import torch
from helpers_kernels import DEVICE

from trivium.ops.triton.inputs import prepare_decode_inputs


def test_decode_inputs() -> None:
    tables = torch.arange(5 * 7, dtype=torch.int32, device=DEVICE).view(5, 7) + 1
    last_tokens = torch.tensor([10, 11, 12, 13, 14], dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([3, 0, -1, 4], device=DEVICE)
    positions = torch.tensor([17, 0, 99, 55], device=DEVICE)
    out = prepare_decode_inputs(rows, positions, last_tokens, tables, 8)
    assert out.input_ids.tolist() == [13, 10, 0, 14]
    assert out.positions.tolist() == [17, 0, 0, 55]
    assert out.seq_lens.tolist() == [18, 1, 0, 56]
    assert out.slots.tolist() == [int(tables[3, 2]) * 8 + 1, int(tables[0, 0]) * 8, -1, int(tables[4, 6]) * 8 + 7]
    expected = torch.zeros(4, 7, dtype=torch.int32, device=DEVICE)
    expected[0, :3], expected[1, :1], expected[3] = tables[3, :3], tables[0, :1], tables[4]
    assert torch.equal(out.block_tables, expected)


def test_decode_inputs_with_wide_tables() -> None:
    tables = torch.randint(1, 9999, (3, 2500), dtype=torch.int32, device=DEVICE)
    rows, positions = torch.tensor([2, 1], device=DEVICE), torch.tensor([2500 * 16 - 1, 1030 * 16], device=DEVICE)
    out = prepare_decode_inputs(rows, positions, torch.zeros(3, dtype=torch.int32, device=DEVICE), tables, 16)
    assert torch.equal(out.block_tables[0], tables[2])
    assert torch.equal(out.block_tables[1, :1031], tables[1, :1031])
    assert not out.block_tables[1, 1031:].any()

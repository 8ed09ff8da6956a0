"""The sum over ranks with residual addition and norm: one rank's kernel, its peers' parts and flags laid out by hand in this process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from helpers_kernels import DEVICE

from trivium.ops.norm import add_rms_norm_reference
from trivium.ops.triton import peers
from trivium.ops.triton.peers import FLAGS_PER_ROW, sum_add_norm

MAX_ROWS = 4
EPS = 1e-5


class Host:
    """The memory of all ranks of one host."""

    def __init__(self, size: int, half_size: int, dtype: torch.dtype) -> None:
        self.size, self.half_size = size, half_size
        self.parts = [torch.zeros(2 * half_size, dtype=dtype, device=DEVICE) for _ in range(size)]
        self.flags = [torch.zeros(MAX_ROWS, FLAGS_PER_ROW, dtype=torch.int32, device=DEVICE) for _ in range(size)]
        self.epochs = torch.zeros(MAX_ROWS, dtype=torch.int32, device=DEVICE)

    def arrive(self, rank: int, at: int, x: Tensor, epoch: int) -> None:
        """Rank `rank` has come to call `epoch` with part x, as rank `at` sees it."""
        start = epoch % 2 * self.half_size
        self.parts[rank][start : start + x.numel()] = x.flatten()
        self.flags[at][: x.shape[0], rank] = epoch

    def run(self, rank: int, x: Tensor, residual: Tensor, weight: Tensor, offset: float) -> Tensor:
        out = torch.empty_like(x)
        addresses = [torch.tensor([memory.data_ptr() for memory in group], dtype=torch.int64, device=DEVICE) for group in (self.parts, self.flags)]
        sum_add_norm(
            x, residual, weight, out, EPS, offset, parts=addresses[0], flags=addresses[1], epochs=self.epochs, half_size=self.half_size,
            rank=rank, size=self.size,
        )  # fmt: skip
        return out


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (2, 1), (4, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 96])
def test_sum_add_norm_equals_the_reference_over_several_calls(size: int, rank: int, dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    host = Host(size, MAX_ROWS * width, dtype)
    weight = torch.randn(width, dtype=dtype, device=DEVICE)
    residual = torch.randn(3, width, dtype=dtype, device=DEVICE)
    expected_residual = residual.clone()
    for epoch in range(1, 4):
        parts = [torch.randn(3, width, dtype=dtype, device=DEVICE) for _ in range(size)]
        for peer in range(size):
            if peer != rank:
                host.arrive(peer, rank, parts[peer], epoch)
        out = host.run(rank, parts[rank], residual, weight, offset=1.0)
        total = sum(part.float() for part in parts)
        assert isinstance(total, Tensor)
        expected, expected_residual = add_rms_norm_reference(total.to(dtype), expected_residual, weight, EPS, offset=1.0)
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(residual, expected_residual, **close)
        torch.testing.assert_close(out, expected, **close)
        expected_residual = residual.clone()
        for peer in range(size):
            if peer != rank:
                assert host.flags[peer][:3, rank].tolist() == [epoch] * 3, "the peer was not told"
        start = epoch % 2 * host.half_size
        assert torch.equal(host.parts[rank][start : start + 3 * width].view(3, width), parts[rank])
    assert host.epochs.tolist() == [3, 3, 3, 0]


@pytest.mark.parametrize(("size", "rank"), [(2, 0), (4, 3)])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 40), (3, 150)])
def test_gather_writes_its_columns_into_every_table(monkeypatch: pytest.MonkeyPatch, size: int, rank: int, num_rows: int, width: int) -> None:
    monkeypatch.setattr(peers, "GATHER_BLOCK", 64)
    lines = peers.num_gather_lines(num_rows, width)
    tables = [torch.full((num_rows, width * size), -1.0, device=DEVICE) for _ in range(size)]
    flags = [torch.zeros(lines, FLAGS_PER_ROW, dtype=torch.int32, device=DEVICE) for _ in range(size)]
    epochs = torch.zeros(lines, dtype=torch.int32, device=DEVICE)
    addresses = [torch.tensor([memory.data_ptr() for memory in group], dtype=torch.int64, device=DEVICE) for group in (tables, flags)]
    for epoch in (1, 2):
        flags[rank][:, :size] = epoch  # the peers have done their part
        x = torch.randn(num_rows, width + 5, device=DEVICE)[:, :width]
        peers.gather(x, tables=addresses[0], flags=addresses[1], epochs=epochs, rank=rank, size=size)
        for peer in range(size):
            expected = torch.full_like(tables[peer], -1.0)
            expected[:, rank * width : (rank + 1) * width] = x
            assert torch.equal(tables[peer], expected)
            if peer != rank:
                assert flags[peer][:, rank].tolist() == [epoch] * lines
    assert epochs.tolist() == [2] * lines

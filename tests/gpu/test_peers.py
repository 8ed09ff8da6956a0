"""Sums and gathering between GPUs of one host, in graphs, against NCCL. Needs two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

WIDTH = 4096
EPS = 1e-5


def _replayed(work):
    """`work()` in a graph, replayed three times, so that epochs and halves go on from call to call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return out


def _check(rank: int, store_path: str) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(store_path, 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    from trivium.ops.norm import add_rms_norm_reference
    from trivium.ops.peers import connect_peers

    peers = connect_peers(dist.group.WORLD, torch.device("cuda", rank))
    assert peers is not None
    for num_rows in (1, 3, 32, 100, 700):
        torch.manual_seed(rank)
        part = torch.randn(num_rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        total = part.clone()
        dist.all_reduce(total)
        assert peers.sums(part)
        torch.testing.assert_close(_replayed(lambda part=part: peers.all_reduce(part, is_kept=True)), total)
        if peers.sums_and_norms(part):
            torch.manual_seed(7)
            residual, weight = (
                torch.randn(num_rows, WIDTH, device="cuda", dtype=torch.bfloat16),
                torch.randn(WIDTH, device="cuda", dtype=torch.bfloat16),
            )
            expected = add_rms_norm_reference(total, residual.clone(), weight, EPS)
            found = _replayed(lambda part=part, residual=residual, weight=weight: peers.add_rms_norm(part, residual.clone(), weight, EPS))
            torch.testing.assert_close(found[1], expected[1])
            torch.testing.assert_close(found[0], expected[0], rtol=2e-2, atol=2e-2)
        assert peers.gathers(part)
        shares = [torch.empty_like(part) for _ in range(2)]
        dist.all_gather(shares, part)
        assert torch.equal(_replayed(lambda part=part: (peers.all_reduce(part, is_kept=False), peers.all_gather(part))[1]), torch.cat(shares, dim=1))
    dist.destroy_process_group()


def test_peers_equal_nccl(tmp_path: Path) -> None:
    multiprocessing.spawn(_check, (str(tmp_path / "store"),), nprocs=2)

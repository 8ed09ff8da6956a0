"""Kernels as engines run them: captured once, replayed over inputs that have changed since, back to back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers_kernels import DEVICE, assert_close, make_batch, make_cache, randn
from torch import Tensor
from torch.nn import functional

from trivium.ops.attention.base import AttentionArgs
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.norm import rms_norm_reference
from trivium.ops.triton import linear, norm


def capture(run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


def test_captured_decode_follows_lengths_and_tables() -> None:
    args = AttentionArgs(32, 8, 128, 128**-0.5)
    cache = make_cache(400, 8, 16, 128)
    batch = make_batch([1] * 8, [1] * 8, 16, 400, on_host=False)
    batch.block_tables = torch.zeros(8, 64, dtype=torch.int32, device=DEVICE)
    query = randn(8, 32, 128)
    backend, reference = TritonAttention(DEVICE), ReferenceAttention()

    def run() -> Tensor:
        backend.plan(batch)
        return backend.forward(query, cache, batch, args)

    graph, out = capture(run)
    for lens in ([700, 1, 33, 64, 65, 512, 900, 0], [5] * 8, [1000, 0, 0, 0, 0, 0, 0, 1]):
        now = make_batch([1] * 8, lens, 16, 400)
        batch.block_tables.zero_()
        batch.block_tables[:, : now.block_tables.shape[1]] = now.block_tables
        batch.seq_lens.copy_(now.seq_lens)
        query.copy_(randn(8, 32, 128))
        for _ in range(3):
            graph.replay()
            filled = [row for row, n in enumerate(lens) if n]
            assert_close(out[filled], reference.forward(query, cache, now, args)[filled])


def test_chained_products_replay_to_the_same_bits() -> None:
    """Programs of a kernel start while those before it drain, several kernels deep: a missing wait would show here."""
    for rows in (1, 2, 8, 32, 64):
        weights = [randn(4096, 4096, scale=4096**-0.5) for _ in range(6)]
        scale, start = randn(4096), randn(rows, 4096)
        residual = torch.empty_like(start)

        def run(weights=weights, scale=scale, start=start, residual=residual) -> Tensor:
            residual.copy_(start)
            x = norm.rms_norm(residual, scale, 1e-6)
            for weight in weights:
                x, _ = norm.add_rms_norm(linear.linear(linear.linear(x, weight), weight), residual, scale, 1e-6)
            return residual

        expected = start.double()
        for weight in weights:
            y = functional.linear(rms_norm_reference(expected.to(start.dtype), scale, 1e-6), weight)
            expected = expected + functional.linear(y, weight).double()
        graph, out = capture(run)
        graph.replay()
        first = out.clone()
        assert_close(first, expected)
        for _ in range(100):
            graph.replay()
            assert torch.equal(out, first)

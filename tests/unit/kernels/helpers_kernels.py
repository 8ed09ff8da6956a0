"""Inputs for kernel tests: on the GPU in bfloat16 when there is one, else on the CPU (whose interpreter has no bfloat16 products)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
TOLERANCE = 1e-2 if ON_GPU else 1e-5


def randn(*shape: int, dtype: torch.dtype = DTYPE, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def assert_close(out: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """By relative error in the norm; NaN never passes."""
    out, expected = out.to(torch.float64), expected.to(torch.float64)
    assert out.shape == expected.shape
    error = (out - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error <= tolerance, f"relative error {error.item():.2e}"


def make_cache(num_blocks: int, kv_heads: int, block_size: int, dim: int, dtype: torch.dtype = DTYPE) -> KVCache:
    """Random, as a cache in use is: what lies past a row's end must not matter."""
    shape = (num_blocks, kv_heads, block_size, dim)
    return KVCache(key=randn(*shape).to(dtype), value=randn(*shape).to(dtype))


def make_batch(query_lens: Sequence[int], seq_lens: Sequence[int], block_size: int, num_blocks: int, *, on_host: bool = True) -> ForwardBatch:
    """Rows with blocks drawn at random without repetition (never block 0)."""
    num_rows, num_tokens = len(query_lens), sum(query_lens)
    width = max(1, max(-(-n // block_size) for n in seq_lens)) + 1
    tables = torch.zeros(num_rows, width, dtype=torch.int32)
    free = iter((torch.randperm(num_blocks - 1) + 1).tolist())
    for row, seq_len in enumerate(seq_lens):
        for i in range(-(-seq_len // block_size)):
            tables[row, i] = next(free)
    starts = [0]
    for n in query_lens:
        starts.append(starts[-1] + n)
    positions = [seq_len - query_len + i for query_len, seq_len in zip(query_lens, seq_lens, strict=True) for i in range(query_len)]
    return ForwardBatch(
        input_ids=torch.zeros(num_tokens, dtype=torch.int32, device=DEVICE),
        positions=torch.tensor(positions, dtype=torch.int64, device=DEVICE),
        slots=torch.zeros(num_tokens, dtype=torch.int64, device=DEVICE),
        block_tables=tables.to(DEVICE),
        query_starts=torch.tensor(starts, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32, device=DEVICE),
        logits_indices=torch.tensor([s - 1 for s in starts[1:]], dtype=torch.int64, device=DEVICE),
        num_decodes=next((i for i, n in enumerate(query_lens) if n != 1), num_rows),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        block_size=block_size,
        query_starts_cpu=starts if on_host else None,
        seq_lens_cpu=list(seq_lens) if on_host else None,
    )

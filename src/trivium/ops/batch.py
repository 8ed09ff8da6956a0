"""`ForwardBatch`: everything a forward pass needs besides weights and caches, passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class ForwardBatch:
    """A step's tokens, flattened over its rows, on the device. R rows, T tokens, S sampled positions.

    Rows with one token come first (`num_decodes` of them), then prefill chunks.
    """

    input_ids: Tensor  # [T] int32
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64; where in the cache the token's key and value go: block * block_size + offset; -1: nowhere (padding)
    block_tables: Tensor  # [R, max_blocks] int32; entries past a row's length are 0
    query_starts: Tensor  # [R + 1] int32; row r owns tokens query_starts[r] .. query_starts[r + 1]
    seq_lens: Tensor  # [R] int32; tokens in the cache once this step's are written
    logits_indices: Tensor  # [S] int64 into T
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    block_size: int
    query_starts_cpu: list[int] | None = None  # None inside a captured graph
    seq_lens_cpu: list[int] | None = None
    attn: Any = None  # what the attention back end planned for this batch

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]

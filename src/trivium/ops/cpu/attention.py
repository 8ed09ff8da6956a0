"""Attention over the paged cache: tensors checked, pointers handed over."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trivium.ops.attention.base import AttentionArgs, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.cpu import library
from trivium.ops.cpu.library import TYPES, loaded


def supports(query: Tensor, cache: KVCache) -> bool:
    return query.dtype in TYPES and cache.value is not None and cache.key.dtype == cache.value.dtype == query.dtype


def paged_attention(query: Tensor, cache: KVCache, batch: ForwardBatch, args: AttentionArgs) -> Tensor:
    """query [T, heads, D] → [T, heads, D]; see `AttentionBackend.forward`."""
    key, value = cache.key, cache.value
    assert value is not None and supports(query, cache)
    num_blocks, kv_heads, block_size, dim = key.shape
    assert value.shape == key.shape and key.is_contiguous() and value.is_contiguous()
    assert kv_heads == args.num_kv_heads and dim == args.head_dim and query.shape[1:] == (args.num_heads, dim)
    rows = batch.num_rows
    tables, starts, lens = batch.block_tables, batch.query_starts, batch.seq_lens
    assert tables.dtype == starts.dtype == lens.dtype == torch.int32
    assert tables.stride(1) == 1 and tables.shape[0] >= rows and starts.shape == (rows + 1,)
    assert starts.is_contiguous() and lens.is_contiguous()
    assert rows == 0 or 0 <= int(starts[0]) <= int(starts[-1]) <= query.shape[0]
    query = query.contiguous()
    out = torch.empty_like(query)
    call = library.AttentionArgs(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        tables.data_ptr(),
        starts.data_ptr(),
        lens.data_ptr(),
        out.data_ptr(),
        tables.stride(0),
        num_blocks,
        rows,
        args.num_heads,
        kv_heads,
        dim,
        block_size,
        args.window or 0,
        args.scale,
        args.softcap or 0.0,
    )
    failed = loaded().attention(TYPES[query.dtype], ctypes.byref(call), torch.get_num_threads())
    assert not failed, "block tables, query starts and lengths contradict each other or the cache"
    return out

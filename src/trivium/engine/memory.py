"""How large the KV cache may be, from measured memory, and its allocation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trivium.arch import KVLayerSpec
from trivium.config import CacheConfig
from trivium.engine.resolve import ResolvedConfig
from trivium.engine.runner import Runner
from trivium.errors import ConfigError
from trivium.ops.attention.base import KVCache
from trivium.scheduling.step import NewRow, StepPlan
from trivium.types import SamplingParams


def block_bytes(layers: Sequence[KVLayerSpec], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers of this rank."""
    return sum(layer.elements_per_token for layer in layers) * dtype.itemsize * block_size


def choose_num_blocks(layers: Sequence[KVLayerSpec], cache: CacheConfig, resolved: ResolvedConfig, dtype: torch.dtype, budget: int) -> int:
    """Blocks that fit in `budget` bytes, block 0 included; never more than all sequences at full length can use.

    Raises `ConfigError` when not even one sequence of `max_model_len` fits.
    """
    per_block = block_bytes(layers, cache.block_size, dtype)
    most = resolved.max_num_seqs * resolved.max_blocks_per_seq + 1
    if cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override + 1
    if cache.kv_cache_memory_bytes is not None:
        budget = cache.kv_cache_memory_bytes
    num_blocks = min(budget // per_block, most)
    if num_blocks - 1 < resolved.max_blocks_per_seq:
        needed = (resolved.max_blocks_per_seq + 1) * per_block
        raise ConfigError(
            f"The KV cache would have {max(num_blocks - 1, 0)} blocks ({max(budget, 0) / 2**20:.0f} MiB), but one sequence of max_model_len "
            f"{resolved.max_model_len} needs {resolved.max_blocks_per_seq} ({needed / 2**20:.0f} MiB): "
            "lower max_model_len or raise kv_cache_memory_bytes.",
            param="max_model_len",
        )
    return num_blocks


def allocate_caches(layers: Sequence[KVLayerSpec], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> list[KVCache]:
    """One `KVCache` per layer, in the layout of `ops.attention.base`."""
    # A CPU's fresh pages are zero and cost nothing until touched; a GPU's may hold NaNs, which masked arithmetic would spread.
    make = torch.zeros if device.type == "cuda" else torch.empty
    caches: list[KVCache] = []
    for layer in layers:
        if layer.latent_dim is not None:
            caches.append(KVCache(make((num_blocks, block_size, layer.latent_dim), dtype=dtype, device=device), None))
        else:
            shape = (num_blocks, layer.num_kv_heads, block_size, layer.head_dim)
            caches.append(KVCache(make(shape, dtype=dtype, device=device), make(shape, dtype=dtype, device=device)))
    return caches


def largest_step(resolved: ResolvedConfig) -> StepPlan:
    """The plan that needs most memory: the whole token budget, every row sampled, at random and from a nucleus. All of it runs on block 0."""
    num_rows = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    num_tokens = [1] * num_rows
    left = resolved.max_num_batched_tokens - num_rows
    for index in reversed(range(num_rows)):
        extra = min(left, resolved.max_model_len - 1)
        num_tokens[index] += extra
        left -= extra
    return _step_on_block_0(num_tokens, [0] * num_rows, SamplingParams(temperature=0.7, top_p=0.95, top_k=50))


def prompt_step(resolved: ResolvedConfig, num_tokens: int, *, cached: int = 0) -> StepPlan:
    """Prompts of `num_tokens` in all behind `cached` tokens each, as few as can be, on block 0; greedy."""
    longest = max(1, min(num_tokens, resolved.max_model_len - 1 - cached))
    lens = [longest] * (num_tokens // longest) + ([num_tokens % longest] if num_tokens % longest else [])
    lens = sorted(lens[: resolved.max_num_seqs])
    return _step_on_block_0(lens, [cached] * len(lens), SamplingParams(temperature=0.0))


def _step_on_block_0(num_tokens: list[int], num_computed: list[int], params: SamplingParams) -> StepPlan:
    num_rows = len(num_tokens)
    new_rows = [
        NewRow(
            row=row,
            request_id=f"profile-{row}",
            params=params,
            prompt_token_ids=[],
            output_token_ids=[],
            stop_token_ids=[],
            bad_words_token_ids=[],
        )
        for row in range(num_rows)
    ]
    return StepPlan(
        step_id=0,
        new_rows=new_rows,
        rows=list(range(num_rows)),
        num_tokens=num_tokens,
        num_computed=num_computed,
        num_fed=num_tokens,
        token_ids=[0] * sum(num_tokens),
        samples=[True] * num_rows,
        block_starts=[0] * num_rows,
        new_blocks=[[]] * num_rows,
    )


def measure_workspace(runner: Runner, resolved: ResolvedConfig, device: torch.device) -> int:
    """Peak bytes beyond what is resident in the largest step there can be, run on `runner`."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    runner.launch(largest_step(resolved)).result()
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak

"""A small paged engine for tests: builds `ForwardBatch` by hand, with blocks given out in a scrambled order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trivium.arch import ModelSpec
from trivium.models import Model, build_model
from trivium.ops.attention import AttentionBackend, create_attention_backend
from trivium.ops.attention.base import KVCache
from trivium.ops.batch import ForwardBatch
from trivium.ops.collective import ParallelContext

NUM_BLOCKS = 512


class DictSource:
    """A weight source over tensors in memory."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.loads: list[str] = []

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def load(self, name: str) -> Tensor:
        self.loads.append(name)
        return self.tensors[name]

    def file_of(self, name: str) -> str:
        return "memory.safetensors"

    @property
    def total_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass
class Running:
    """One sequence: its tokens and how many of them are in the cache."""

    tokens: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


class PagedHarness:
    """Runs sequences through a model in any partition of their tokens."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: dict[str, Tensor] | None,
        *,
        block_size: int = 16,
        backend: str = "reference",
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        parallel: ParallelContext | None = None,
    ) -> None:
        parallel = parallel or ParallelContext()
        self.attention: AttentionBackend = create_attention_backend(backend, device)
        source: Any = None if tensors is None else DictSource(tensors)
        self.model: Model = build_model(spec, dtype=dtype, device=device, parallel=parallel, attention=self.attention, source=source)
        self.block_size = block_size
        self.device = device
        self.caches = [_cache(layer.shard(parallel.size), block_size, dtype, device) for layer in spec.kv_layers]
        order = torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(0)) + 1
        self.free_blocks: list[int] = order.tolist()

    def add(self, tokens: Sequence[int]) -> Running:
        return Running(list(tokens))

    @torch.inference_mode()
    def step(self, work: Sequence[tuple[Running, int]], *, padding: int = 0) -> list[Tensor]:
        """Compute the next `count` tokens of each sequence in one batch → logits [count, vocab] of each.

        `padding` rows of one token that belong to nobody follow, as a captured graph has them.
        """
        work = sorted(work, key=lambda item: item[1] > 1)  # single tokens first, as the scheduler does
        batch = self._batch(work, padding)
        self.attention.plan(batch)
        hidden = self.model.forward(batch, self.caches)
        logits = self.model.compute_logits(hidden[batch.logits_indices])
        for sequence, count in work:
            sequence.num_computed += count
        return list(logits.split([count for _, count in work] + [1] * padding))[: len(work)]

    def logits(self, tokens: Sequence[int], *, chunk: int | None = None) -> Tensor:
        """Logits at every position, computed in chunks: [len(tokens), vocab]."""
        sequence, parts = self.add(tokens), []
        while sequence.num_computed < len(tokens):
            left = len(tokens) - sequence.num_computed
            parts += self.step([(sequence, min(chunk or left, left))])
        return torch.cat(parts)

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int, *, chunk: int | None = None) -> list[list[int]]:
        """Greedy continuations. Prompts are prefilled in chunks while the others already decode."""
        sequences = [self.add(prompt) for prompt in prompts]
        lengths = [len(prompt) for prompt in prompts]
        while any(len(s.tokens) - n < num_tokens for s, n in zip(sequences, lengths, strict=True)):
            active = [s for s, n in zip(sequences, lengths, strict=True) if len(s.tokens) - n < num_tokens]
            active.sort(key=lambda s: len(s.tokens) - s.num_computed > 1)
            work = [(s, min(len(s.tokens) - s.num_computed, chunk or NUM_BLOCKS * self.block_size)) for s in active]
            work.sort(key=lambda item: item[1] > 1)
            for (sequence, _), logits in zip(work, self.step(work), strict=True):
                if sequence.num_computed == len(sequence.tokens):
                    sequence.tokens.append(int(logits[-1].argmax()))
        return [s.tokens[n:] for s, n in zip(sequences, lengths, strict=True)]

    def _batch(self, work: Sequence[tuple[Running, int]], padding: int = 0) -> ForwardBatch:
        ids, positions, slots, starts, seq_lens = [], [], [], [0], []
        for sequence, count in work:
            end = sequence.num_computed + count
            while len(sequence.blocks) * self.block_size < end:
                sequence.blocks.append(self.free_blocks.pop())
            for position in range(sequence.num_computed, end):
                ids.append(sequence.tokens[position])
                positions.append(position)
                slots.append(sequence.blocks[position // self.block_size] * self.block_size + position % self.block_size)
            starts.append(len(ids))
            seq_lens.append(end)
        width = max(len(sequence.blocks) for sequence, _ in work)
        tables = [sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence, _ in work]
        counts = [count for _, count in work]
        for _ in range(padding):
            ids, positions, slots, tables = [*ids, 0], [*positions, 0], [*slots, -1], [*tables, [0] * width]
            starts, seq_lens, counts = [*starts, starts[-1] + 1], [*seq_lens, 1], [*counts, 1]

        def tensor(values: Any, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        return ForwardBatch(
            input_ids=tensor(ids, torch.int32),
            positions=tensor(positions, torch.int64),
            slots=tensor(slots, torch.int64),
            block_tables=tensor(tables, torch.int32),
            query_starts=tensor(starts, torch.int32),
            seq_lens=tensor(seq_lens, torch.int32),
            logits_indices=torch.arange(len(ids), device=self.device),
            num_decodes=sum(count == 1 for count in counts),
            max_query_len=max(counts),
            max_seq_len=max(seq_lens),
            block_size=self.block_size,
            query_starts_cpu=starts,
            seq_lens_cpu=seq_lens,
        )


def _cache(layer: Any, block_size: int, dtype: torch.dtype, device: str) -> KVCache:
    """Filled with NaN where nothing was written: reading beyond a row's length shows."""
    if layer.latent_dim is not None:
        return KVCache(torch.full((NUM_BLOCKS, block_size, layer.latent_dim), torch.nan, dtype=dtype, device=device), None)
    shape = (NUM_BLOCKS, layer.num_kv_heads, block_size, layer.head_dim)
    return KVCache(torch.full(shape, torch.nan, dtype=dtype, device=device), torch.full(shape, torch.nan, dtype=dtype, device=device))

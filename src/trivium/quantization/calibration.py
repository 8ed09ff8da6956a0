"""A calibration text, and the activations it gives rise to, one layer after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trivium.errors import ConfigError
from trivium.layers.linear import Linear, LinearMethod
from trivium.models import Model
from trivium.models.decoder import DecoderLayer
from trivium.ops.attention.base import AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.text import Tokenizer

MAX_TEXT_BYTES = 256 << 20
BLOCK_SIZE = 16
SAMPLE_ROWS = 2048
"""Inputs of a layer that are kept as they are, spread over the text."""


def read_sequences(path: Path, tokenizer: Tokenizer, *, num_samples: int, length: int) -> list[list[int]]:
    """Up to `num_samples` runs of `length` tokens, spread evenly over the text. Raises `ConfigError` for a file that holds none."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_TEXT_BYTES} bytes: too long for a calibration text.", param="calibration")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read as text: {error}", param="calibration") from None
    tokens = tokenizer.encode(text[: 16 * num_samples * length])
    count = min(num_samples, len(tokens) // length)
    if count == 0:
        raise ConfigError(f"{path} has {len(tokens)} tokens; at least {length} are needed.", param="calibration")
    stride = len(tokens) // count
    return [tokens[start : start + length] for start in range(0, count * stride, stride)]


@dataclass
class Inputs:
    """What a linear layer was given."""

    hessian: Tensor
    """float32 [K, K]: the mean of x x^T."""
    magnitude: Tensor
    """float32 [K]: the mean of |x|."""
    rows: Tensor
    """[R, K]: some of them."""


class _Recording(LinearMethod):
    """A layer's own method, with its inputs looked at on the way."""

    def __init__(self, method: LinearMethod, *, keep_every: int) -> None:
        self.method = method
        self.keep_every = keep_every
        self.products: Tensor | None = None
        self.magnitudes: Tensor | None = None
        self.count = 0
        self.rows: list[Tensor] = []

    def apply(self, layer: Linear, x: Tensor) -> Tensor:
        self._look(x)
        return self.method.apply(layer, x)

    def apply_gated(self, layer: Linear, x: Tensor, kind: str) -> Tensor:
        self._look(x)
        return self.method.apply_gated(layer, x, kind)

    def _look(self, x: Tensor) -> None:
        wide = x.to(torch.float32)
        product, magnitude = wide.T @ wide, wide.abs().sum(dim=0)
        self.products = product if self.products is None else self.products.add_(product)
        self.magnitudes = magnitude if self.magnitudes is None else self.magnitudes.add_(magnitude)
        self.rows.append(x[-self.count % self.keep_every :: self.keep_every].clone())
        self.count += len(x)

    def inputs(self) -> Inputs:
        assert self.products is not None and self.magnitudes is not None
        return Inputs(self.products / self.count, self.magnitudes / self.count, torch.cat(self.rows))

    def create(self, layer: Linear, context: object) -> None:
        raise AssertionError("the layer is made already")

    def slots(self, layer: Linear) -> list[object]:  # type: ignore[override]
        raise AssertionError("the layer is loaded already")

    def finish(self, layer: Linear) -> None:
        raise AssertionError("the layer is loaded already")


class CalibrationRun:
    """The residual streams of all sequences, between two layers."""

    def __init__(self, model: Model, attention: AttentionBackend, sequences: Sequence[Sequence[int]], device: torch.device) -> None:
        self.attention = attention
        self.num_tokens = sum(len(tokens) for tokens in sequences)
        self.batches = [_batch(tokens, device) for tokens in sequences]
        self.states: list[tuple[Tensor | None, Tensor]] = []
        for batch in self.batches:
            residual = model.embedding.lookup(batch.input_ids)
            self.states.append((None, residual if model.embed_scale is None else residual * model.embed_scale))

    def look(self, layer: DecoderLayer, cache: KVCache, linears: Sequence[Linear]) -> list[Inputs]:
        """What `linears`, parts of `layer`, are given. The streams stay before the layer."""
        with _recorded(linears, max(1, self.num_tokens // SAMPLE_ROWS)) as recordings:
            for batch, state in zip(self.batches, self.states, strict=True):
                self._through(layer, batch, cache, state)
        return [recording.inputs() for recording in recordings]

    def advance(self, layer: DecoderLayer, cache: KVCache) -> None:
        self.states = [self._through(layer, batch, cache, state) for batch, state in zip(self.batches, self.states, strict=True)]

    def _through(self, layer: DecoderLayer, batch: ForwardBatch, cache: KVCache, state: tuple[Tensor | None, Tensor]) -> tuple[Tensor, Tensor]:
        self.attention.plan(batch)
        hidden, residual = state
        # A layer may write to what it is given.
        found = layer(None if hidden is None else hidden.clone(), residual.clone(), batch, cache)
        assert isinstance(found[0], Tensor)
        return found[0], found[1]


@contextmanager
def _recorded(linears: Sequence[Linear], keep_every: int) -> Iterator[list[_Recording]]:
    recordings = [_Recording(linear.method, keep_every=keep_every) for linear in linears]
    for linear, recording in zip(linears, recordings, strict=True):
        linear.method = recording
    try:
        yield recordings
    finally:
        for linear, recording in zip(linears, recordings, strict=True):
            linear.method = recording.method


def _batch(tokens: Sequence[int], device: torch.device) -> ForwardBatch:
    """One prompt from its first token, in blocks from 1 on."""
    length = len(tokens)
    num_blocks = -(-length // BLOCK_SIZE)
    positions = torch.arange(length, device=device)
    return ForwardBatch(
        input_ids=torch.tensor(tokens, dtype=torch.int32, device=device),
        positions=positions,
        slots=positions + BLOCK_SIZE,
        block_tables=torch.arange(1, num_blocks + 1, dtype=torch.int32, device=device).unsqueeze(0),
        query_starts=torch.tensor([0, length], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([length], dtype=torch.int32, device=device),
        logits_indices=torch.tensor([length - 1], device=device),
        num_decodes=0,
        max_query_len=length,
        max_seq_len=length,
        block_size=BLOCK_SIZE,
        query_starts_cpu=[0, length],
        seq_lens_cpu=[length],
    )

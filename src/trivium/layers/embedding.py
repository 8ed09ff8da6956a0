"""Token embeddings and the output head, their vocabulary split over ranks."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from trivium.layers.base import BuildContext, Layer, Slot
from trivium.ops.linear import PackedWeight, linear, try_pack_weight


class VocabMatrix(Layer):
    """A [vocab, hidden] matrix: rows are looked up as embeddings, or multiplied with as output head, or both if they are tied.

    Ranks have equal shares of rows, the last ones padded with zeros that are cut off the logits.
    """

    def __init__(self, context: BuildContext, name: str, vocab_size: int, hidden_size: int, *, is_embedding: bool, is_head: bool) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.parallel = context.parallel
        self.is_embedding = is_embedding
        self.is_head = is_head
        self.share = -(-vocab_size // self.parallel.size)
        self.start = min(self.parallel.rank * self.share, vocab_size)
        self.end = min(self.start + self.share, vocab_size)
        self.weight: Tensor | None = context.empty(self.share, hidden_size)
        self.weight[self.end - self.start :].zero_()
        self.hidden_size = hidden_size
        self.packed: PackedWeight | None = None

    def lookup(self, ids: Tensor) -> Tensor:
        """ids [T] → [T, hidden]."""
        assert self.weight is not None
        if self.parallel.size == 1:
            return functional.embedding(ids, self.weight)
        local = ids - self.start
        outside = (local < 0) | (local >= self.end - self.start)
        rows = functional.embedding(local.masked_fill(outside, 0), self.weight)
        return self.parallel.all_reduce(rows.masked_fill(outside[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, hidden] → [S, vocab] in hidden's dtype, or float32 if they are made in it, whole on every rank."""
        if self.packed is not None:
            local = self.packed.wide(hidden)
        else:
            assert self.weight is not None
            local = linear(hidden, self.weight)
        return self.parallel.all_gather(local)[:, : self.vocab_size]

    def slots(self) -> list[Slot]:
        assert self.weight is not None
        target = self.weight[: self.end - self.start]
        copies = (((slice(self.start, self.end),), target),) if len(target) else ()
        return [Slot(f"{self.name}.weight", (self.vocab_size, self.hidden_size), copies)]

    def nbytes(self) -> int:
        return super().nbytes() + (self.packed.nbytes if self.packed is not None else 0)

    def keeps_rows_apart(self) -> bool:
        return not self.is_head or (self.packed is not None and self.packed.keeps_rows_apart)

    def finish(self) -> None:
        """A packed copy for the head. Embeddings need the plain rows, so a tied matrix is kept both ways where packing helps."""
        if not self.is_head:
            return
        assert self.weight is not None
        self.packed = try_pack_weight(self.weight)
        if self.packed is not None and not self.is_embedding:
            self.weight = None

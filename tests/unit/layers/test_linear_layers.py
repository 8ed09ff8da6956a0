"""Linear layers and the vocabulary matrix: merged, sharded, packed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trivium.errors import ConfigError
from trivium.layers.attention import kv_head_range
from trivium.layers.base import BuildContext, Layer
from trivium.layers.embedding import VocabMatrix
from trivium.layers.linear import PlainLinear, column_parallel, row_parallel, split_evenly, stacked
from trivium.ops import dispatch
from trivium.ops.collective import ParallelContext


def context(rank: int = 0, size: int = 1) -> BuildContext:
    return BuildContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        parallel=ParallelContext(rank, size, SimpleNamespace() if size > 1 else None),  # type: ignore[arg-type]
        attention=None,  # type: ignore[arg-type]
        rope_table=None,  # type: ignore[arg-type]
        linear_method=lambda name: PlainLinear(),
    )


def fill(layer: Layer, tensors: dict[str, Tensor]) -> None:
    for slot in layer.slots():
        assert tuple(tensors[slot.name].shape) == slot.shape
        slot.load(tensors[slot.name])
    layer.finish()


@pytest.fixture(autouse=True)
def _references() -> Any:
    with dispatch.references_only("cpu"):
        yield


def test_columns_of_all_ranks_side_by_side_are_the_whole() -> None:
    weight, bias, x = torch.randn(6, 4), torch.randn(6), torch.randn(3, 4)
    parts = []
    for rank in range(3):
        layer = column_parallel(context(rank, 3), "m", 6, 4, bias=True)
        fill(layer, {"m.weight": weight, "m.bias": bias})
        parts.append(layer(x))
    torch.testing.assert_close(torch.cat(parts, dim=1), functional.linear(x, weight, bias))


def test_rows_of_all_ranks_add_up_and_the_bias_counts_once() -> None:
    weight, bias, x = torch.randn(5, 6), torch.randn(5), torch.randn(3, 6)
    total = torch.zeros(3, 5)
    for rank in range(2):
        layer = row_parallel(context(rank, 2), "m", 5, 6, bias=True)
        assert {slot.name for slot in layer.slots()} == {"m.weight", "m.bias"}
        fill(layer, {"m.weight": weight, "m.bias": bias})
        total += layer(x[:, rank * 3 : rank * 3 + 3])
    torch.testing.assert_close(total, functional.linear(x, weight, bias))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stacked_checkpoint_tensor_gives_the_same_as_separate_ones(rank: int) -> None:
    a, b, x = torch.randn(4, 3), torch.randn(6, 3), torch.randn(2, 3)
    parts = [(4, (2 * rank, 2 * rank + 2)), (6, (3 * rank, 3 * rank + 3))]
    separate = stacked(context(rank, 2), ["a", "b"], parts, 3, bias=False)
    fill(separate, {"a.weight": a, "b.weight": b})
    together = stacked(context(rank, 2), ["ab"], parts, 3, bias=False)
    fill(together, {"ab.weight": torch.cat((a, b))})
    expected = torch.cat((x @ a[2 * rank : 2 * rank + 2].T, x @ b[3 * rank : 3 * rank + 3].T), dim=1)
    torch.testing.assert_close(separate(x), expected)
    torch.testing.assert_close(together(x), expected)


def test_uneven_shares_are_refused() -> None:
    assert split_evenly(6, 2, 3, "things") == (4, 6)
    with pytest.raises(ConfigError, match=r"4 does not divide the model's things \(6\)"):
        split_evenly(6, 0, 4, "things")


def test_key_value_heads_are_shared_or_repeated() -> None:
    assert [kv_head_range(4, rank, 2) for rank in range(2)] == [(0, 2), (2, 4)]
    assert [kv_head_range(2, rank, 4) for rank in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]
    with pytest.raises(ConfigError, match="not a multiple"):
        kv_head_range(3, 0, 4)


class Packed:
    """A weight in some other layout."""

    def __init__(self, weight: Tensor) -> None:
        self.transposed = weight.T.contiguous()
        self.nbytes = 1000

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out = x @ self.transposed
        return out if bias is None else out + bias

    def wide(self, x: Tensor) -> Tensor:
        return self(x, None).to(torch.float32)


def test_a_packed_weight_replaces_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_loaded", {"cpu": {"pack_weight": Packed}})
    weight, bias, x = torch.randn(6, 4), torch.randn(6), torch.randn(3, 4)
    layer = column_parallel(context(), "m", 6, 4, bias=True)
    fill(layer, {"m.weight": weight, "m.bias": bias})
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    assert layer.nbytes() == 1000 + 6 * 4
    torch.testing.assert_close(layer(x), functional.linear(x, weight, bias))


@pytest.mark.parametrize(("is_embedding", "is_head"), [(True, True), (False, True), (True, False)])
def test_a_tied_matrix_keeps_its_rows_when_the_head_is_packed(monkeypatch: pytest.MonkeyPatch, is_embedding: bool, is_head: bool) -> None:
    monkeypatch.setattr(dispatch, "_loaded", {"cpu": {"pack_weight": Packed}})
    weight = torch.randn(7, 4)
    matrix = VocabMatrix(context(), "v", 7, 4, is_embedding=is_embedding, is_head=is_head)
    fill(matrix, {"v.weight": weight})
    assert (matrix.weight is not None) == is_embedding
    assert (matrix.packed is not None) == is_head
    if is_embedding:
        torch.testing.assert_close(matrix.lookup(torch.tensor([3, 0])), weight[[3, 0]])
    if is_head:
        torch.testing.assert_close(matrix.logits(torch.ones(1, 4)), weight.sum(dim=1)[None])


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    weight = torch.randn(5, 2)
    for rank, (start, end) in enumerate([(0, 2), (2, 4), (4, 5), (5, 5)]):
        matrix = VocabMatrix(context(rank, 4), "v", 5, 2, is_embedding=True, is_head=True)
        fill(matrix, {"v.weight": weight})
        assert matrix.weight is not None
        torch.testing.assert_close(matrix.weight[: end - start], weight[start:end])
        assert torch.all(matrix.weight[end - start :] == 0)

"""Linear layers of every quantized layout on one rank and on several: shards cut through words, groups and shuffled inputs, and add up."""

from __future__ import annotations

import pytest
import torch
from helpers_quantized import FORMATS
from torch import Tensor

from trivium.arch.quantization_config import read_quantization
from trivium.arch.reader import ConfigReader
from trivium.errors import WeightError
from trivium.layers.base import BuildContext
from trivium.layers.linear import Linear, Rows
from trivium.layers.quantized import QuantizedLinear
from trivium.ops.attention import create_attention_backend
from trivium.ops.collective import ParallelContext
from trivium.ops.quantized import StackedProducts
from trivium.weights.layouts import WeightLayout, layout_of

NAMES = ("q", "k", "v")
SIZES = {"q": 96, "k": 48, "v": 48}
NUM_IN = 96


def checkpoint(form: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors of three matrices of the same inputs, and what they stand for in float64."""
    torch.manual_seed(3)
    tensors: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name in NAMES:
        weight = torch.randn(2 * SIZES[name], NUM_IN)
        raw, dense[name] = FORMATS[form].make(weight)
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in raw.items()}
        tensors[f"{name}.bias"] = torch.randn(2 * SIZES[name])
    return tensors, dense


def layer(form: str, tensors: dict[str, Tensor], rows: list[Rows], rank: int, size: int, *, columns: tuple[int, int] | None = None) -> Linear:
    quantization = read_quantization(ConfigReader({"quantization_config": FORMATS[form].section}))
    assert quantization is not None

    def layout(name: str) -> WeightLayout | None:
        scheme = quantization.scheme(name)
        return None if scheme is None else layout_of(scheme)

    context = BuildContext(
        dtype=torch.float32,
        device=torch.device("cpu"),
        parallel=ParallelContext(rank, size, object() if size > 1 else None),  # type: ignore[arg-type]
        attention=create_attention_backend("reference", "cpu"),
        rope_table=lambda _: None,  # type: ignore[arg-type,return-value]
        linear_method=lambda _: QuantizedLinear(layout),
    )
    made = Linear(context, rows, NUM_IN, columns=columns, has_bias=True)
    for slot in made.slots():
        if slot.required or slot.name in tensors:
            slot.load(tensors[slot.name])
    made.finish()
    return made


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_columns_over_ranks(form: str, size: int) -> None:
    """Stacked matrices, each rank a range of the rows of each."""
    tensors, dense = checkpoint(form)
    x = torch.randn(7, NUM_IN)
    for rank in range(size):
        shares = {name: (2 * SIZES[name] // size * rank, 2 * SIZES[name] // size * (rank + 1)) for name in NAMES}
        made = layer(form, tensors, [Rows(name, 2 * SIZES[name], (shares[name],)) for name in NAMES], rank, size)
        assert not isinstance(made.packed, StackedProducts)
        expected = torch.cat([(x.double() @ dense[name].T + tensors[f"{name}.bias"])[:, slice(*shares[name])] for name in NAMES], dim=1)
        torch.testing.assert_close(made(x).double(), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_rows_over_ranks(form: str, size: int) -> None:
    """Ranges of 12 to 48 inputs, where groups have 32."""
    tensors, dense = checkpoint(form)
    x, width = torch.randn(7, NUM_IN), NUM_IN // size
    total = torch.zeros(7, 192)
    for rank in range(size):
        columns = (width * rank, width * (rank + 1))
        made = layer(form, tensors, [Rows("q", 192, ((0, 192),))], rank, size, columns=columns)
        total += made(x[:, slice(*columns)])
    torch.testing.assert_close(total.double(), x.double() @ dense["q"].T + tensors["q.bias"], rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize("form", ["awq", "gptq", "nf4", "packed"])
def test_ranges_of_one_stacked_matrix(form: str) -> None:
    """As Phi-3 has them: several ranges of rows, which need not begin where words do."""
    tensors, dense = checkpoint(form)
    ranges = ((3, 21), (40, 41), (64, 192))
    made = layer(form, tensors, [Rows("q", 192, ranges)], 0, 1)
    x = torch.randn(3, NUM_IN)
    whole = x.double() @ dense["q"].T + tensors["q.bias"]
    torch.testing.assert_close(made(x).double(), torch.cat([whole[:, slice(*own)] for own in ranges], dim=1), rtol=1e-4, atol=2e-4)


def test_gated_products_and_memory() -> None:
    tensors, dense = checkpoint("gptq")
    made = layer("gptq", tensors, [Rows("q", 192, ((0, 192),))], 0, 1)
    x = torch.randn(4, NUM_IN)
    gate, up = (x.double() @ dense["q"].T + tensors["q.bias"]).split(96, dim=1)
    torch.testing.assert_close(made.gated(x, "silu").double(), torch.nn.functional.silu(gate) * up, rtol=1e-4, atol=3e-4)
    assert made.nbytes() < 192 * NUM_IN  # 4 bits, scales, a bias
    assert made.raw == {}


def test_contents_that_can_not_be_are_named() -> None:
    tensors, _ = checkpoint("gptq-act-order")
    tensors["q.g_idx"] = tensors["q.g_idx"] + 1
    with pytest.raises(WeightError, match=r"q: g_idx names groups from 1 to 3; there are 3"):
        layer("gptq-act-order", tensors, [Rows("q", 192, ((0, 192),))], 0, 1)

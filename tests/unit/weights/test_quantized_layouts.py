"""Layouts of quantized weights: golden words, and every layout against a reading of its definition number by number."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from trivium.arch.quantization import BitsAndBytesScheme, Fp8Scheme, GroupedScheme
from trivium.errors import WeightError
from trivium.weights.bits import pack, unpack
from trivium.weights.layouts import Share, layout_of
from trivium.weights.layouts.awq import pack_awq
from trivium.weights.layouts.gptq import pack_gptq
from trivium.weights.layouts.marlin import pack_marlin
from trivium.weights.quantize import nearest, quantize_fp8, quantize_int4, quantize_int8, quantize_table4
from trivium.weights.quantized import arrange, even_groups
from trivium.weights.tables import code_table


def unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


def random_matrix(n: int, k: int, bits: int, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """codes uint8 [n, k], scales of float16 [n, g], zeros uint8 [n, g]."""
    count = int(groups.max()) + 1
    torch.manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8)
    return codes, (torch.rand(n, count) + 0.1).half(), torch.randint(1, 1 << bits, (n, count), dtype=torch.uint8)


def dense(codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor) -> Tensor:
    return (codes.double() - zeros.double()[:, groups]) * scales.double()[:, groups]


# --- words


def test_golden_words() -> None:
    row = torch.arange(8, dtype=torch.uint8)
    assert pack(row, 4).tolist() == [0x76543210]
    awq = pack_awq(row.unsqueeze(1), torch.ones(8, 1), row.unsqueeze(1))
    assert awq["qweight"].tolist() == [[0x75316420]] == awq["qzeros"].tolist()
    for bits, stored in ((4, 0x77777777), (8, 0x7F7F7F7F)):
        middle = torch.full((32, 1), 1 << (bits - 1), dtype=torch.uint8)
        groups = torch.zeros(32, dtype=torch.int64)
        one = pack_gptq(torch.zeros(32, 32, dtype=torch.uint8), torch.ones(32, 1), middle, groups, bits)
        two = pack_gptq(torch.zeros(32, 32, dtype=torch.uint8), torch.ones(32, 1), middle, groups, bits, version=2)
        assert {unsigned(word) for word in one["qzeros"].flatten().tolist()} == {stored}
        assert {unsigned(word) for word in two["qzeros"].flatten().tolist()} == {0x88888888 if bits == 4 else 0x80808080}


@pytest.mark.parametrize(("bits", "step"), [(2, 0x55555555), (4, 0x11111111), (8, 0x01010101)])
def test_second_version_of_zero_points_is_the_first_plus_one_in_each_field(bits: int, step: int) -> None:
    zeros = torch.randint(1, 1 << bits, (32, 1), dtype=torch.uint8)
    arguments: Any = (torch.zeros(32, 32, dtype=torch.uint8), torch.ones(32, 1), zeros, torch.zeros(32, dtype=torch.int64), bits)
    one, two = pack_gptq(*arguments)["qzeros"], pack_gptq(*arguments, version=2)["qzeros"]
    assert [unsigned(word + step) for word in one.flatten().tolist()] == [unsigned(word) for word in two.flatten().tolist()]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_numbers_are_a_stream_of_bits(bits: int) -> None:
    torch.manual_seed(bits)
    numbers = torch.randint(0, 1 << bits, (3, 64), dtype=torch.uint8)
    words = pack(numbers, bits)
    assert words.shape == (3, 64 * bits // 32)
    for row, packed in zip(numbers.tolist(), words.tolist(), strict=True):
        stream = sum(unsigned(word) << (32 * index) for index, word in enumerate(packed))
        assert [(stream >> (bits * index)) & ((1 << bits) - 1) for index in range(64)] == row
    assert torch.equal(unpack(words, bits), numbers)


def test_nf4_golden_block() -> None:
    block = torch.tensor([2, -2, 0, 1, -0.5, 0.25, 1.5, -1.2])
    codes = nearest(block / 2, code_table("nf4"))
    assert codes.tolist() == [15, 0, 7, 12, 4, 9, 14, 2]
    assert bytes(((codes[0::2] << 4) | codes[1::2]).tolist()).hex(" ") == "f0 7c 49 e2"
    expected = torch.tensor([2, -2, 0, 0.88142, -0.56888, 0.32186, 1.44591, -1.05015])
    torch.testing.assert_close(code_table("nf4")[codes.long()] * 2, expected, atol=1e-5, rtol=0)


def test_fp4_table() -> None:
    assert (code_table("fp4") * 12).tolist() == pytest.approx([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3])


# --- whole matrices


SHARES = [
    Share.whole(64, 128),
    Share(64, 128, ((0, 8), (32, 48)), (0, 128), torch.device("cpu")),
    Share(64, 128, ((3, 9), (17, 18)), (0, 128), torch.device("cpu")),
    Share(64, 128, ((0, 64),), (64, 128), torch.device("cpu")),
    Share(64, 128, ((0, 64),), (40, 90), torch.device("cpu")),
]


def part(matrix: Tensor, share: Share) -> Tensor:
    rows = torch.cat([torch.arange(start, end) for start, end in share.rows])
    return matrix[rows][:, share.columns[0] : share.columns[1]]


def check_shares(layout: Any, raw: dict[str, Tensor], expected: Tensor) -> None:
    specs = layout.tensors(*expected.shape)
    assert {spec.suffix for spec in specs if spec.required} <= raw.keys() <= {spec.suffix for spec in specs}
    for spec in specs:
        if spec.suffix in raw and spec.shape is not None:
            assert tuple(raw[spec.suffix].shape) == spec.shape, spec.suffix
    for share in SHARES:
        found = layout.read(raw, share)
        torch.testing.assert_close(found.dequantize(torch.float64), part(expected, share), rtol=1e-6, atol=1e-7)
        arranged = arrange(found)
        assert arranged.group % 16 == 0 and arranged.codes.shape[1] == arranged.group * arranged.scales.shape[1]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group_size", [None, 32, 64, 128])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(bits: int, group_size: int | None, version: int, act_order: bool) -> None:
    groups = even_groups(128, group_size)
    if act_order:
        groups = groups[torch.randperm(128, generator=torch.Generator().manual_seed(1))]
    codes, scales, zeros = random_matrix(64, 128, bits, groups)
    scheme = GroupedScheme(layout="gptq", bits=bits, group_size=group_size, symmetric=False, act_order=act_order, zero_offset=2 - version)
    raw = pack_gptq(codes, scales, zeros, groups, bits, version=version)
    check_shares(layout_of(scheme), raw, dense(codes, scales, zeros, groups))
    if not act_order:
        del raw["g_idx"]
        check_shares(layout_of(scheme), raw, dense(codes, scales, zeros, groups))


def test_gptq_zero_points_wrap_around() -> None:
    """The largest stored number is -1 in the first version: a zero point of 0."""
    scheme = GroupedScheme(layout="gptq", bits=4, group_size=None, symmetric=False, zero_offset=1)
    raw = pack_gptq(torch.full((32, 32), 3, dtype=torch.uint8), torch.ones(32, 1), torch.zeros(32, 1, dtype=torch.uint8), even_groups(32, None), 4)
    assert unsigned(int(raw["qzeros"][0, 0])) == 0xFFFFFFFF
    assert bool((layout_of(scheme).read(raw, Share.whole(32, 32)).dequantize() == 3).all())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_gptq_needs_no_zero_points(bits: int) -> None:
    groups = even_groups(64, 32)
    codes, scales, zeros = random_matrix(32, 64, bits, groups)
    zeros.fill_(1 << (bits - 1))
    scheme = GroupedScheme(layout="gptq", bits=bits, group_size=32, symmetric=True, zero_offset=1)
    found = layout_of(scheme).read(pack_gptq(codes, scales, zeros, groups, bits), Share.whole(32, 64))
    assert found.zeros is None
    torch.testing.assert_close(found.dequantize(torch.float64), dense(codes, scales, zeros, groups))


@pytest.mark.parametrize("index", [-1, 4])
def test_a_group_that_is_not_there_is_an_error(index: int) -> None:
    scheme = GroupedScheme(layout="gptq", bits=4, group_size=32, symmetric=True, act_order=True, zero_offset=1)
    raw = pack_gptq(*random_matrix(32, 128, 4, even_groups(128, 32)), even_groups(128, 32), 4)
    raw["g_idx"][5] = index
    with pytest.raises(WeightError, match=r"g_idx names groups from"):
        layout_of(scheme).read(raw, Share.whole(32, 128))


@pytest.mark.parametrize("group_size", [None, 32, 64])
def test_awq(group_size: int | None) -> None:
    groups = even_groups(128, group_size)
    codes, scales, zeros = random_matrix(64, 128, 4, groups)
    scheme = GroupedScheme(layout="awq", bits=4, group_size=group_size, symmetric=False)
    check_shares(layout_of(scheme), pack_awq(codes, scales, zeros), dense(codes, scales, zeros, groups))


@pytest.mark.parametrize("group_size", [32, 64])
def test_awq_gemv(group_size: int) -> None:
    groups = even_groups(128, group_size)
    codes, scales, zeros = random_matrix(64, 128, 4, groups)
    count = 128 // group_size
    wide_zeros = torch.nn.functional.pad(zeros, (0, 32 - count))
    raw = {"qweight": pack(codes, 4), "qzeros": pack(wide_zeros, 4), "scales": torch.nn.functional.pad(scales, (0, 32 - count))}
    layout = layout_of(GroupedScheme(layout="awq_gemv", bits=4, group_size=group_size, symmetric=False))
    check_shares(layout, raw, dense(codes, scales, zeros, groups))
    raw["scales"] = scales[:, : count - 1]
    with pytest.raises(WeightError, match="scales has shape"):
        layout.read(raw, SHARES[0])


@pytest.mark.parametrize("group_size", [None, 64])
def test_marlin(group_size: int | None) -> None:
    groups = even_groups(128, group_size)
    codes, scales, zeros = random_matrix(64, 128, 4, groups)
    zeros.fill_(8)
    scheme = GroupedScheme(layout="marlin", bits=4, group_size=group_size, symmetric=True)
    check_shares(layout_of(scheme), pack_marlin(codes, scales), dense(codes, scales, zeros, groups))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_compressed_tensors_packed(bits: int, symmetric: bool, act_order: bool) -> None:
    groups = even_groups(128, 32)
    if act_order:
        groups = groups[torch.randperm(128)]
    codes, scales, zeros = random_matrix(64, 128, bits, groups)
    if symmetric:
        zeros.fill_(1 << (bits - 1))
    raw = {"weight_packed": pack(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor([64, 128])}
    if not symmetric:
        raw["weight_zero_point"] = pack(zeros.T.contiguous(), bits).T.contiguous()
    if act_order:
        raw["weight_g_idx"] = groups.to(torch.int32)
    scheme = GroupedScheme(layout="packed", bits=bits, group_size=32, symmetric=symmetric, act_order=act_order)
    check_shares(layout_of(scheme), raw, dense(codes, scales, zeros, groups))


def test_compressed_tensors_int8_without_rounded_inputs() -> None:
    weight, scale = torch.randint(-128, 128, (64, 128), dtype=torch.int8), torch.rand(64, 4)
    expected = weight.double() * scale.double().repeat_interleave(32, dim=1)
    layout = layout_of(GroupedScheme(layout="int8", bits=8, group_size=32, symmetric=True))
    check_shares(layout, {"weight": weight, "weight_scale": scale}, expected)


@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
def test_fp8(kind: Any) -> None:
    weight = (torch.randn(64, 128) * 30).to(torch.float8_e4m3fn)
    shape = {"tensor": (), "channel": (64, 1), "block": (3, 4)}[kind]
    scale = torch.rand(shape) + 0.1
    rows, columns = torch.arange(64) // 24, torch.arange(128) // 32
    factor = scale.double()[rows][:, columns] if kind == "block" else scale.double()
    layout = layout_of(Fp8Scheme(scale=kind, block=(24, 32), name="weight_scale_inv"))
    check_shares(layout, {"weight": weight, "weight_scale_inv": scale, "input_scale": torch.ones(())}, weight.double() * factor)


def test_fp8_scales_of_another_number_are_an_error() -> None:
    raw = {"weight": torch.zeros(8, 16).to(torch.float8_e4m3fn), "weight_scale": torch.ones(3)}
    with pytest.raises(WeightError, match=r"weight_scale has shape \[3\]"):
        layout_of(Fp8Scheme(scale="tensor")).read(raw, Share.whole(8, 16))


def test_bitsandbytes_int8() -> None:
    weight, largest = torch.randint(-127, 128, (64, 128), dtype=torch.int8), torch.rand(64)
    check_shares(layout_of(BitsAndBytesScheme(bits=8)), {"weight": weight, "SCB": largest}, weight.double() * largest.double()[:, None] / 127)


def bnb4(codes: Tensor, absmax: Tensor, table: Tensor, *, blocksize: int, nested: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a matrix in blocks of the flattened codes, and its blocks' scales as they are after nesting."""
    flat = codes.flatten()
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": blocksize, "dtype": "bfloat16", "shape": list(codes.shape)}
    raw = {"weight": ((flat[0::2] << 4) | flat[1::2]).unsqueeze(1), "weight.quant_map": table, "weight.absmax": absmax}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
        inner = torch.linspace(-1, 1, 256)
        outer = torch.rand(-(-len(absmax) // 256)) + 0.5
        small = torch.randint(0, 256, absmax.shape, dtype=torch.uint8)
        raw |= {"weight.absmax": small, "weight.nested_absmax": outer, "weight.nested_quant_map": inner}
        absmax = inner[small.long()] * outer[torch.arange(len(absmax)) // 256] + 0.25
    raw["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return raw, absmax


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("blocksize", [64, 128, 48])
def test_bitsandbytes_4_bit(nested: bool, blocksize: int) -> None:
    """Blocks of 48 reach from row to row."""
    codes = torch.randint(0, 16, (64, 128), dtype=torch.uint8)
    table = code_table("nf4")
    raw, absmax = bnb4(codes, torch.rand(-(-64 * 128 // blocksize)) + 0.1, table, blocksize=blocksize, nested=nested)
    expected = table.double()[codes.long()] * absmax.double()[torch.arange(64 * 128) // blocksize].view(64, 128)
    check_shares(layout_of(BitsAndBytesScheme(bits=4, table="nf4")), raw, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [64, 127]}, "quant_state: shape"),
        ({"blocksize": 0}, "blocksize must be at least 1"),
        ({"blocksize": "64"}, "blocksize must be a whole number"),
        ({"blocksize": 32}, "weight.absmax holds 128 scales"),
    ],
)
def test_a_malformed_state_is_named(change: dict[str, Any], message: str) -> None:
    codes = torch.zeros(64, 128, dtype=torch.uint8)
    raw, _ = bnb4(codes, torch.ones(128), code_table("nf4"), blocksize=64, nested=False)
    name = "weight.quant_state.bitsandbytes__nf4"
    state = {**json.loads(bytes(raw[name].tolist())), **change}
    raw[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    with pytest.raises(Exception, match=message):
        layout_of(BitsAndBytesScheme(bits=4, table="nf4")).read(raw, Share.whole(64, 128))


# --- rounding on the fly


@pytest.mark.parametrize("width", [128, 100])
def test_rounding_is_to_the_nearest(width: int) -> None:
    weight = torch.randn(20, width)
    weight[3] = 0
    for quantized, relative in (
        (quantize_int8(weight), 0.5 / 127),
        (quantize_fp8(weight), 2**-4),
        (quantize_int4(weight, 32), 0.5 / 7),
        (quantize_table4(weight, "nf4"), 0.16),
        (quantize_table4(weight, "fp4"), 0.17),
    ):
        error = (quantized.dequantize() - weight).abs()
        assert bool((error <= relative * weight.abs().amax(dim=1, keepdim=True) * 1.001).all())
        assert not quantized.dequantize()[3].any()

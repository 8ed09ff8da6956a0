"""Tensors as JSON and as bytes, compared with numpy; shapes that lie; classes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.errors import InvalidRequest
from trivium.frontends.kserve.classification import classify
from trivium.frontends.kserve.json_tensors import pack, read_values, unpack
from trivium.frontends.kserve.tensor_bytes import MAX_RANK, count_strings, has_size, join_strings, num_elements, split_strings
from trivium.infer import DataType, Tensor

NUMPY: dict[DataType, Any] = {
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.FP16: np.float16,
    DataType.FP32: np.float32,
    DataType.FP64: np.float64,
    DataType.BF16: ml_dtypes.bfloat16,
}
INTEGERS = [datatype for datatype in NUMPY if "INT" in datatype]
FLOATS = [DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64]


def _read(text: str, datatype: DataType) -> bytes:
    return pack(read_values(text.encode(), datatype, "IN"), datatype, "IN")


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_numpys(datatype: DataType) -> None:
    info = np.iinfo(NUMPY[datatype])
    values = [info.min, info.max, 0, 1]
    assert _read(json.dumps(values), datatype) == np.array(values, NUMPY[datatype]).tobytes()
    assert unpack(np.array(values, NUMPY[datatype]).tobytes(), datatype, "OUT") == values
    for outside in (info.min - 1, info.max + 1):
        with pytest.raises(InvalidRequest):
            _read(json.dumps([outside]), datatype)


@pytest.mark.parametrize("datatype", FLOATS)
@given(values=st.lists(st.floats(width=16), max_size=20))
def test_floats_are_numpys(datatype: DataType, values: list[float]) -> None:
    array = np.array(values, NUMPY[datatype])
    written = unpack(array.tobytes(), datatype, "OUT")
    json.loads(json.dumps(written), parse_constant=pytest.fail)
    assert _read(json.dumps(written), datatype) == array.tobytes() or any(map(math.isnan, values))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_bfloat16_is_rounded_as_by_ml_dtypes(values: list[float]) -> None:
    assert _read(json.dumps(values), DataType.BF16) == np.array(values, np.float32).astype(ml_dtypes.bfloat16).tobytes()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=10))
def test_strings_are_themselves(values: list[str]) -> None:
    data = _read(json.dumps(values), DataType.BYTES)
    assert unpack(data, DataType.BYTES, "OUT") == values
    assert split_strings(data) == [value.encode() for value in values]
    assert count_strings(data, at_most=len(values)) == len(values)


def test_nested_arrays_are_flattened() -> None:
    assert _read("[[[1,2],[3,4]],[[5,6],[7,8]]]", DataType.UINT8) == bytes(range(1, 9))
    assert _read("[]", DataType.FP32) == b""
    assert _read("[[],[]]", DataType.FP32) == b""
    assert _read("[1, 2.5]", DataType.FP32) == struct.pack("<2f", 1, 2.5)
    assert _read("[true,false]", DataType.BOOL) == b"\x01\x00"


@pytest.mark.parametrize(
    ("text", "datatype"),
    [
        ("[1, [2]]", DataType.FP32),
        ("[[1], 2]", DataType.FP32),
        ("5", DataType.FP32),
        ('"text"', DataType.BYTES),
        ('{"a": 1}', DataType.FP32),
        ("[1.5]", DataType.INT32),
        ("[true]", DataType.INT32),
        ("[true]", DataType.FP32),
        ("[1]", DataType.BOOL),
        ("[1]", DataType.BYTES),
        ('["1"]', DataType.FP32),
        ("[null]", DataType.FP32),
        ("[1e6]", DataType.FP16),
        ("[" * 5000 + "]" * 5000, DataType.FP32),
        ("[" * 70 + "1" + "]" * 70, DataType.FP32),
        ("[1,", DataType.FP32),
        ('["\\ud800"]', DataType.BYTES),
    ],
)
def test_what_does_not_fit_is_refused(text: str, datatype: DataType) -> None:
    with pytest.raises(InvalidRequest):
        _read(text, datatype)


def test_bytes_that_are_no_text_need_the_binary_form() -> None:
    with pytest.raises(InvalidRequest, match="binary data"):
        unpack(join_strings([b"\xff"]), DataType.BYTES, "OUT")


@pytest.mark.parametrize(
    ("shape", "count"),
    [((), 1), ((0,), 0), ((2, 3), 6), ((1 << 40, 0), 0), ((-1, 2), None), ((1 << 40, 1 << 40), None), ((1,) * (MAX_RANK + 1), None)],
)
def test_elements_of_a_shape(shape: tuple[int, ...], count: int | None) -> None:
    if count is None:
        with pytest.raises(InvalidRequest):
            num_elements(shape, "IN")
    else:
        assert num_elements(shape, "IN") == count


@pytest.mark.parametrize("data", [b"\x01", b"\x05\x00\x00\x00abc", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00\x00"])
def test_lengths_of_strings_must_add_up(data: bytes) -> None:
    assert count_strings(data, at_most=100) == -1
    assert not has_size(DataType.BYTES, 1, data)


# -- classification ---------------------------------------------------------------------------------------------------------------


def _classes(values: Any, datatype: DataType, shape: tuple[int, ...], count: int, labels: tuple[str, ...] = (), *, batches: bool = True) -> list[str]:
    tensor = Tensor("OUT", datatype, shape, np.array(values, NUMPY[datatype]).tobytes())
    found = classify(tensor, count, labels, batches=batches)
    texts = [text.decode() for text in split_strings(found.data)]
    assert math.prod(found.shape) == len(texts)
    return texts


def test_the_largest_come_first_with_their_labels() -> None:
    assert _classes([[0.5, 2, -1]], DataType.FP32, (1, 3), 2, ("a", "b")) == ["2.000000:1:b", "0.500000:0:a"]
    assert _classes([[1, 2], [4, 3]], DataType.INT32, (2, 2), 9) == ["2:1", "1:0", "4:0", "3:1"]
    assert _classes([7, 9], DataType.UINT8, (2,), 1, batches=False) == ["9:1"]
    assert _classes([[math.nan, 1, 1]], DataType.FP64, (1, 3), 3) == ["1.000000:1", "1.000000:2", "nan:0"]


def test_types_without_order_have_no_classes() -> None:
    with pytest.raises(InvalidRequest, match="unsupported type 'BYTES'"):
        classify(Tensor("OUT", DataType.BYTES, (1,), join_strings([b"x"])), 1, (), batches=False)

"""Arrays to wire bytes and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trivium.errors import InvalidRequest
from trivium.infer import DataType
from trivium.worker.tensors import NUMPY_TYPES, datatype_of, split_bytes, to_array, to_data

NUMBERS = [dtype for dtype in NUMPY_TYPES.values() if dtype != np.dtype(np.object_)]


@given(st.sampled_from(NUMBERS).flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))))
def test_numbers_come_back_bit_for_bit(array: Any) -> None:
    for given_array in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        data = to_data(given_array)
        assert memoryview(data).nbytes == array.nbytes
        found = to_array(datatype_of(given_array.dtype), array.shape, data)
        assert found.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=20), max_size=12))
def test_bytes_come_back(elements: list[bytes]) -> None:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    data = to_data(array)
    assert split_bytes(data, (len(elements),)).tolist() == elements
    assert split_bytes(data, (1, len(elements), 1)).shape == (1, len(elements), 1)
    for wrong in ((len(elements) + 1,), (2, len(elements) + 1)):
        with pytest.raises(InvalidRequest):
            split_bytes(data, wrong)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_tensor_or_refused(data: bytes) -> None:
    for datatype in DataType:
        try:
            array = to_array(datatype, (len(data) // 4,), data)
        except InvalidRequest:
            continue
        assert bytes(to_data(array)) == data


def test_large_arrays_are_not_copied() -> None:
    array = np.zeros((64, 64), np.float32)
    assert np.shares_memory(np.frombuffer(to_data(array), np.uint8), array)

"""The classification extension: an output's k largest values as text, `value:index[:label]`, instead of the output itself."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from trivium.errors import InvalidRequest
from trivium.frontends.kserve.json_tensors import unpack_numbers
from trivium.frontends.kserve.tensor_bytes import join_strings
from trivium.infer import DataType, Tensor

_UNSUPPORTED: Final = frozenset({DataType.BYTES, DataType.BOOL, DataType.FP16, DataType.BF16})


def classify(tensor: Tensor, class_count: int, labels: Sequence[str], *, batches: bool) -> Tensor:
    """A BYTES tensor of shape [min(k, classes)], after the batch dimension if the model `batches`.

    Raises `InvalidRequest` for types without an order. Equal values keep the order of their indices.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise InvalidRequest(f"class result not available for output due to unsupported type '{tensor.datatype}'")
    values = unpack_numbers(tensor.data, tensor.datatype)
    rows = tensor.shape[0] if batches else 1
    num_classes = len(values) // rows if rows else 0
    num_kept = min(class_count, num_classes)
    is_float = tensor.datatype in (DataType.FP32, DataType.FP64)
    texts: list[bytes] = []
    for row in range(rows):
        scores = values[row * num_classes : (row + 1) * num_classes]
        for index in _largest(scores, num_kept):
            value = f"{scores[index]:f}" if is_float else str(scores[index])
            label = f":{labels[index]}" if index < len(labels) else ""
            texts.append(f"{value}:{index}{label}".encode())
    shape = (rows, num_kept) if batches else (num_kept,)
    return Tensor(tensor.name, DataType.BYTES, shape, join_strings(texts))


def _largest(scores: Sequence[float], count: int) -> list[int]:
    # NaN is comparable with nothing: it goes to the end.
    return heapq.nsmallest(count, range(len(scores)), key=lambda index: (scores[index] != scores[index], -scores[index], index))

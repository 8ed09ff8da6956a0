"""`Tensor`: a named array, made by a model from numpy or DLPack, or by the server from bytes, which become an array when asked for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from trivium.errors import InvalidRequest
from trivium.infer import Buffer, DataType
from trivium.protocol.worker_messages import WireTensor
from trivium.worker.link import Link
from trivium.worker.pb.errors import TritonModelException, clean
from trivium.worker.tensors import Array, datatype_of, split_bytes, to_array, to_data

_CONFIG_NAMES = {DataType.BYTES: "TYPE_STRING"}


class Tensor:
    """`Tensor(name, array)`; see also `from_dlpack`. Tensors lie in the memory of the CPU."""

    __slots__ = ("_array", "_data", "_datatype", "_name", "_shape")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(name, str):
            raise TritonModelException(f"a tensor's name must be a string, not {type(name).__name__}")
        array = np.asarray(numpy_array)
        try:
            datatype = datatype_of(array.dtype)
        except InvalidRequest as error:
            raise TritonModelException(f"Tensor '{name}': {error.message}") from None
        self._name = clean(name)
        self._array: Array | None = array
        self._datatype = datatype
        self._shape: tuple[int, ...] = array.shape
        self._data: Buffer | None = None

    @classmethod
    def _from_wire(cls, wire: WireTensor, link: Link) -> Tensor:
        self = cls.__new__(cls)
        self._name = wire.name
        self._datatype = wire.datatype
        self._shape = wire.shape
        self._data = wire.data if wire.offset < 0 else link.unpack(wire)
        self._array = None
        return self

    def _to_wire(self, link: Link) -> WireTensor:
        data = self._data
        if data is None:
            assert self._array is not None
            data = to_data(self._array)
        return link.pack(self._name, self._datatype, self._shape, data)

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> str:
        """As in a model's configuration, `TYPE_FP32` for example."""
        return _CONFIG_NAMES.get(self._datatype, f"TYPE_{self._datatype}")

    def as_numpy(self) -> Array:
        """BYTES tensors are arrays of `bytes` objects. Raises for BF16, which numpy doesn't have."""
        if self._array is None:
            assert self._data is not None
            try:
                self._array = to_array(self._datatype, self._shape, self._data)
            except InvalidRequest as error:
                raise TritonModelException(f"Tensor '{self._name}': {error.message}") from None
        return self._array

    def is_cpu(self) -> bool:
        return True

    # -- DLPack -------------------------------------------------------------------------------------------------------------------

    def __dlpack__(self, **options: Any) -> Any:
        return _exporter(self)[0].__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def to_dlpack(self) -> Any:
        """A capsule that shares the tensor's memory."""
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, source: Any) -> Tensor:
        """From a capsule or an object with `__dlpack__`, on the CPU; shares its memory where numpy can."""
        if type(source).__name__ == "PyCapsule":
            source = _Capsule(source)
        kind = source.__dlpack_device__()[0]
        if kind not in (1, 3):
            source = source.cpu() if hasattr(source, "cpu") else source
        torch = sys.modules.get("torch")
        if torch is not None and getattr(source, "dtype", None) is torch.bfloat16:
            return _from_bits(name, source.detach().contiguous().view(torch.int16).numpy())
        try:
            return Tensor(name, np.from_dlpack(source))
        except (BufferError, RuntimeError, TypeError) as error:
            raise TritonModelException(f"Tensor '{name}': {error}") from None


class _Capsule:
    """A bare capsule as the object that numpy wants."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _exporter(tensor: Tensor) -> tuple[Any]:
    if tensor._datatype is DataType.BYTES:
        raise TritonModelException(f"Tensor '{tensor._name}': BYTES tensors can't be exchanged through DLPack")
    if tensor._datatype is not DataType.BF16:
        array = tensor.as_numpy()
        return (array if array.flags.writeable else array.copy(),)
    try:
        import torch
    except ImportError:
        raise TritonModelException(f"Tensor '{tensor._name}': BF16 through DLPack needs torch") from None
    assert tensor._data is not None
    return (torch.frombuffer(bytearray(tensor._data), dtype=torch.bfloat16).reshape(tensor._shape),)


def _from_bits(name: str, bits: Array) -> Tensor:
    """A BF16 tensor from its elements' bits."""
    tensor = Tensor(name, bits)
    tensor._data = to_data(bits)
    tensor._array = None
    tensor._datatype = DataType.BF16
    return tensor


def serialize_byte_tensor(input_tensor: Array) -> Array:
    """The wire form of an array of bytes or strings, in an array of one object; an empty array stays empty."""
    if input_tensor.size == 0:
        return np.empty([0], np.object_)
    if input_tensor.dtype.kind not in "OS":
        raise TritonModelException("cannot serialize bytes tensor: invalid datatype")
    return np.asarray(bytes(to_data(input_tensor)), np.object_)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """One dimension of `bytes` objects."""
    count, position = 0, 0
    while position + 4 <= len(encoded_tensor):
        position += 4 + int.from_bytes(encoded_tensor[position : position + 4], "little")
        count += 1
    try:
        return split_bytes(encoded_tensor, (count,))
    except InvalidRequest as error:
        raise TritonModelException(error.message) from None

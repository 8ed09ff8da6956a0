"""Back ends whose library computes on arrays: requests are joined to one batch of rows, computed at once, and taken apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from trivium.errors import InternalError, InvalidRequest, TriviumError
from trivium.infer import DataType
from trivium.protocol.worker_messages import Batch, BatchDone, WireRequest, WireResponse, WireTensor
from trivium.worker.link import Link
from trivium.worker.ragged import BatchInputs
from trivium.worker.tensors import NUMPY_TYPES, Array, to_array, to_data

logger = logging.getLogger(__name__)


class Session(Protocol):
    """What computes for one instance. Arrays of BYTES hold `bytes` objects; BF16 arrays are `BrainFloats`."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        """Raises `InvalidRequest` for inputs the model can't take, and whatever the library raises. More than `outputs` may come back."""
        ...


class BrainFloats(np.ndarray[Any, Any]):
    """The bits of BF16 elements, as 16-bit integers: numpy has no such type."""


class NativeInstance:
    """See `runtime.Instance`."""

    def __init__(self, session: Session, config: dict[str, Any], link: Link, scalars: frozenset[str] = frozenset()) -> None:
        """`scalars`: inputs and outputs that have no dimensions for the library and one element for clients."""
        self._session = session
        self._link = link
        self._scalars = scalars
        self._model = config["name"]
        self._batches = config.get("max_batch_size", 0) > 0
        states = config.get("sequence_batching", {}).get("state", [])
        self._datatypes = {output["name"]: config_datatype(output["data_type"]) for output in config.get("output", [])}
        self._datatypes |= {state["output_name"]: config_datatype(state["data_type"]) for state in states}
        self._names = list(self._datatypes)
        self._batch_inputs = BatchInputs(config)

    def close(self) -> None:
        pass

    def run(self, batch: Batch) -> BatchDone:
        responses: list[WireResponse | None]
        begin_ns = end_ns = time.monotonic_ns()
        try:
            inputs, rows = self._join(batch.requests)
            names = self._wanted(batch.requests)
            for name in self._scalars.intersection(inputs):
                inputs[name] = inputs[name].reshape(())
            begin_ns = time.monotonic_ns()
            outputs = self._session.run(inputs, names)
            end_ns = time.monotonic_ns()
            responses = self._split(batch.requests, outputs, rows)
        except Exception as error:
            end_ns = max(end_ns, time.monotonic_ns())
            responses = [self._failure(error) for _ in batch.requests]
        return BatchDone(batch.first_key, responses, begin_ns, end_ns)

    def _failure(self, error: Exception) -> WireResponse:
        if isinstance(error, InvalidRequest):
            return WireResponse(slug=error.slug, message=error.message)
        text = error.message if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"
        return WireResponse(slug=InternalError.slug, message=f"model '{self._model}' failed: {text}")

    def _wanted(self, requests: Sequence[WireRequest]) -> list[str]:
        """What at least one request asks for, in the configuration's order."""
        if any(not request.outputs for request in requests):
            return self._names
        asked = {name for request in requests for name in request.outputs}
        return [name for name in self._names if name in asked]

    # -- inputs -------------------------------------------------------------------------------------------------------------------

    def _join(self, requests: Sequence[WireRequest]) -> tuple[dict[str, Array], list[int]]:
        """The arrays of the batch by name, and each request's number of rows."""
        if self._batch_inputs:
            return self._batch_inputs.join(requests, self._array)
        first = requests[0]
        if len(requests) == 1:
            rows = first.inputs[0].shape[0] if self._batches and first.inputs and first.inputs[0].shape else 1
            return {tensor.name: self._array(tensor) for tensor in first.inputs}, [rows]
        rows_of = [request.inputs[0].shape[0] for request in requests]
        total = sum(rows_of)
        joined: dict[str, Array] = {}
        for index, head in enumerate(first.inputs):
            tensors = [_find(request, index, head.name) for request in requests]
            shape = (total, *head.shape[1:])
            data = bytearray().join([self._link.unpack(tensor) for tensor in tensors])
            joined[head.name] = _as_array(head.datatype, shape, data)
        return joined, rows_of

    def _array(self, tensor: WireTensor) -> Array:
        return _as_array(tensor.datatype, tensor.shape, self._link.unpack(tensor))

    # -- outputs ------------------------------------------------------------------------------------------------------------------

    def _split(self, requests: Sequence[WireRequest], outputs: Mapping[str, Array], rows: list[int]) -> list[WireResponse | None]:
        parts = [(name, self._parts(requests, name, outputs[name], rows)) for name in self._names if name in outputs]
        responses: list[WireResponse | None] = []
        for index, request in enumerate(requests):
            wanted = request.outputs
            tensors = [self._pack(name, found[index]) for name, found in parts if not wanted or name in wanted]
            responses.append(WireResponse(outputs=tensors))
        return responses

    def _parts(self, requests: Sequence[WireRequest], name: str, array: Array, rows: list[int]) -> Sequence[Array]:
        """What of an output belongs to each request."""
        scattered = self._batch_inputs.scatter(requests, name, array)
        if scattered is not None:
            return scattered
        if not self._batches:
            return [array]
        total = sum(rows)
        if array.ndim == 0 or array.shape[0] != total:
            raise InternalError(f"output '{name}' has shape {list(array.shape)} for a batch of {total}")
        return [array] if len(rows) == 1 else np.split(array, np.cumsum(rows[:-1]))

    def _pack(self, name: str, array: Array) -> WireTensor:
        datatype = self._datatypes[name]
        if name in self._scalars:
            array = array.reshape(1)
        if datatype is DataType.BF16:
            if not isinstance(array, BrainFloats):
                raise InternalError(f"output '{name}' is {array.dtype}, the configuration says BF16")
            array = array.view(np.ndarray)
        elif array.dtype != NUMPY_TYPES[datatype] and not (datatype is DataType.BYTES and array.dtype.kind in "OSU"):
            raise InternalError(f"output '{name}' is {array.dtype}, the configuration says {datatype}")
        return self._link.pack(name, datatype, array.shape, to_data(array))


def _as_array(datatype: DataType, shape: tuple[int, ...], data: bytearray | memoryview) -> Array:
    if datatype is DataType.BF16:
        return np.frombuffer(data, np.uint16).reshape(shape).view(BrainFloats)
    return to_array(datatype, shape, data)


def _find(request: WireRequest, index: int, name: str) -> WireTensor:
    """Clients mostly send inputs in the same order."""
    inputs = request.inputs
    if index < len(inputs) and inputs[index].name == name:
        return inputs[index]
    found = next((tensor for tensor in inputs if tensor.name == name), None)
    if found is None:
        raise InternalError(f"the requests of a batch differ in input '{name}'")
    return found


def config_datatype(name: str) -> DataType:
    """From `TYPE_FP32`, as configurations say it."""
    return DataType.BYTES if name == "TYPE_STRING" else DataType(name.removeprefix("TYPE_"))


def config_name(datatype: DataType) -> str:
    return "TYPE_STRING" if datatype is DataType.BYTES else f"TYPE_{datatype}"

"""An inference request over HTTP: its JSON, the tensors that follow it in binary, and how the client wants each output.

Binary extension: the header `Inference-Header-Content-Length: N` says how much of the body is JSON; the tensors follow in the order of the
inputs that have a `binary_data_size`. N = 0 (or an empty body) means raw binary: the whole body is the model's only input.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec
from msgspec import UNSET

from trivium.backends.tensor_base import ModelSignature
from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.frontends.kserve.json_tensors import pack, read_values
from trivium.frontends.kserve.parameters import BINARY_DATA_OUTPUT, apply_parameters
from trivium.frontends.kserve.schema import INFER_DECODER, InferBody, InputBody, OutputBody, OutputParameters
from trivium.frontends.kserve.shared_memory import RegionSlice, SharedMemoryRegions
from trivium.frontends.kserve.tensor_bytes import count_strings, has_size, num_elements
from trivium.frontends.limits import MalformedBody, parse_json
from trivium.infer import ITEM_SIZES, Buffer, DataType, InferRequest, RequestedOutput, Tensor
from trivium.service.tensors import TensorService

DATATYPES: Final = {str(datatype): datatype for datatype in DataType}
MAX_HEADER_DIGITS: Final = 20


class OutputForms(msgspec.Struct):
    """How the answer carries its tensors."""

    is_binary: bool = False
    """Unless `binary` says otherwise for an output."""
    binary: dict[str, bool] | None = None
    regions: dict[str, RegionSlice] | None = None
    """Outputs that go into shared memory."""

    def is_binary_for(self, name: str) -> bool:
        return self.is_binary if self.binary is None else self.binary.get(name, self.is_binary)


class InferParser:
    """Parses requests of one server."""

    def __init__(self, tensors: TensorService, regions: SharedMemoryRegions, *, max_json_bytes: int) -> None:
        self._tensors = tensors
        self._regions = regions
        self._max_json_bytes = max_json_bytes

    def parse(self, model: str, version: str, body: bytes, json_length: bytes | None) -> tuple[InferRequest, OutputForms]:
        """`json_length` is the header's value. Raises `InvalidRequest`, and for raw binary what a lease of the model raises."""
        length = _json_length(json_length, body)
        if length == 0:
            return self._parse_raw(model, version, body)
        if length > self._max_json_bytes:
            raise InvalidRequest(f"The JSON part of a request can't be larger than {self._max_json_bytes} bytes; send tensors as binary data.")
        whole = body if length == len(body) else body[:length]
        parsed = parse_body(whole)
        tail = memoryview(body)[length:]
        request = InferRequest(model=model, version=version, id=parsed.id, inputs=self._inputs(parsed, tail, model))
        forms = _NO_FORMS
        if parsed.parameters:
            apply_parameters(request, parsed.parameters)
            if parsed.parameters.get(BINARY_DATA_OUTPUT):
                forms = _ALL_BINARY
        if parsed.outputs:
            forms = self._outputs(request, parsed.outputs, is_binary=forms.is_binary)
        return request, forms

    # -- inputs -------------------------------------------------------------------------------------------------------------------

    def _inputs(self, body: InferBody, tail: memoryview, model: str) -> list[Tensor]:
        inputs: list[Tensor] = []
        position = 0
        for given in body.inputs:
            datatype = DATATYPES.get(given.datatype)
            if datatype is None:
                raise InvalidRequest(f"invalid datatype for input {given.name}")
            count = num_elements(given.shape, given.name)
            parameters = given.parameters
            if parameters is not None and parameters.binary_data_size is not UNSET:
                if given.data is not UNSET or parameters.shared_memory_region is not UNSET:
                    _refuse_two_sources(given)
                end = position + parameters.binary_data_size
                if parameters.binary_data_size < 0:
                    raise InvalidRequest(f"binary_data_size of input '{given.name}' must not be negative")
                if end > len(tail):
                    missing = end - len(tail)
                    raise InvalidRequest(f"unexpected size for input '{given.name}', expecting {missing} additional bytes for model '{model}'")
                data: Buffer = tail[position:end]
                position = end
                check_size(data, datatype, count, given.name, model, body.id)
            else:
                data = self._other_source(given, datatype, count, model, body.id)
            inputs.append(Tensor(given.name, datatype, tuple(given.shape), data))
        if position != len(tail):
            raise InvalidRequest(f"unexpected additional input data for model '{model}'")
        return inputs

    def _other_source(self, given: InputBody, datatype: DataType, count: int, model: str, request_id: str) -> Buffer:
        parameters = given.parameters
        if parameters is not None and parameters.shared_memory_region is not UNSET:
            if given.data is not UNSET:
                _refuse_two_sources(given)
            region = self._regions.slice(
                parameters.shared_memory_region, parameters.shared_memory_offset, _byte_size(parameters.shared_memory_byte_size)
            )
            data = region.read()
            check_size(data, datatype, count, given.name, model, request_id)
            return data
        if given.data is UNSET:
            raise InvalidRequest(f"Input '{given.name}' must have data: one of 'data', 'binary_data_size' or 'shared_memory_region' in 'parameters'.")
        raw = memoryview(given.data)
        # Each element takes a character and a comma: a shape that claims more is refused before anything is made of it.
        if count > (len(raw) + 1) // 2:
            raise _wrong_shape()
        values = read_values(raw, datatype, given.name)
        if len(values) != count:
            raise _wrong_shape()
        return pack(values, datatype, given.name)

    def _parse_raw(self, model: str, version: str, body: bytes) -> tuple[InferRequest, OutputForms]:
        signature = self._tensors.signature(model, version)
        datatype, shape = _raw_shape(signature, body)
        request = InferRequest(model=model, version=version, inputs=[Tensor(signature.inputs[0].name, datatype, shape, body)])
        return request, _ALL_BINARY

    # -- outputs ------------------------------------------------------------------------------------------------------------------

    def _outputs(self, request: InferRequest, outputs: list[OutputBody], *, is_binary: bool) -> OutputForms:
        forms = OutputForms(is_binary=is_binary)
        for output in outputs:
            if any(output.name == known.name for known in request.outputs):
                continue
            parameters = output.parameters
            if parameters is None:
                request.outputs.append(RequestedOutput(name=output.name))
                continue
            if not 0 <= parameters.classification < 2**31:
                raise InvalidRequest(f"classification of output '{output.name}' must be a positive number")
            request.outputs.append(RequestedOutput(name=output.name, class_count=parameters.classification))
            self._set_form(forms, output.name, parameters)
        return forms

    def _set_form(self, forms: OutputForms, name: str, parameters: OutputParameters) -> None:
        if parameters.shared_memory_region is not UNSET:
            if parameters.binary_data is True:
                raise InvalidRequest(f"output '{name}' can't be both binary data and in shared memory")
            forms.regions = forms.regions or {}
            size = _byte_size(parameters.shared_memory_byte_size)
            forms.regions[name] = self._regions.slice(parameters.shared_memory_region, parameters.shared_memory_offset, size)
        elif parameters.binary_data is not UNSET:
            forms.binary = forms.binary or {}
            forms.binary[name] = parameters.binary_data


def parse_body(body: bytes) -> InferBody:
    """Raises `InvalidRequest`. Bare NaN and infinities, which Python's clients write, pass as the strings of the same name."""
    try:
        return parse_json(body, INFER_DECODER)
    except MalformedBody:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
    try:
        repaired = json.loads(body, parse_constant=str)
    except (ValueError, RecursionError):
        raise MalformedBody("The request body is not valid JSON.") from None
    return parse_json(msgspec.json.encode(repaired), INFER_DECODER)


_NO_FORMS: Final = OutputForms()
_ALL_BINARY: Final = OutputForms(is_binary=True)


def check_size(data: Buffer, datatype: DataType, count: int, name: str, model: str, request_id: str) -> None:
    """Raises `InvalidRequest` unless `data` is `count` elements long."""
    if has_size(datatype, count, data):
        return
    prefix = f"[request id: {request_id or '<id_unknown>'}] "
    size = ITEM_SIZES.get(datatype)
    if size is not None:
        message = f"input byte size mismatch for input '{name}' for model '{model}'. Expected {count * size}, got {len(data)}"
    elif count_strings(data, at_most=len(data)) < 0:
        message = f"incomplete string data for inference input '{name}' for model '{model}': lengths and bytes don't add up"
    else:
        found = count_strings(data, at_most=len(data))
        message = f"unexpected number of string elements {found} for inference input '{name}' for model '{model}', expecting {count}"
    raise InvalidRequest(prefix + message)


def _json_length(value: bytes | None, body: bytes) -> int:
    if value is None:
        return len(body)
    text = value.strip()
    if len(text) > MAX_HEADER_DIGITS or not text.removeprefix(b"-").isdigit():
        raise InvalidRequest("Inference-Header-Content-Length must be a whole number")
    length = int(text)
    if not 0 <= length <= len(body):
        raise InvalidRequest(f"inference header size should be in range (0, {len(body)}), got: {length}")
    return length


def _raw_shape(signature: ModelSignature, body: bytes) -> tuple[DataType, tuple[int, ...]]:
    """Datatype and shape of the only input of a raw binary request: one row, at most one dimension open."""
    name = signature.name
    if len(signature.inputs) != 1:
        num_inputs = len(signature.inputs)
        raise InvalidRequest(f"Raw request must only have 1 input to be deduced but got {num_inputs} inputs in '{name}' model configuration")
    spec = signature.inputs[0]
    dims = spec.shape[1:] if signature.max_batch_size else spec.shape
    rows = (1,) if signature.max_batch_size else ()
    size = ITEM_SIZES.get(spec.datatype)
    if size is None:
        if any(dim not in (1, -1) for dim in dims):
            raise InvalidRequest(f"For BYTES datatype raw input 'raw_input', the model must have input shape [1], got {list(dims)}")
        check_size(body, spec.datatype, 1, "raw_input", name, "")
        return spec.datatype, rows + (1,) * len(dims)
    if dims.count(-1) > 1:
        raise UnsupportedFeature(f"The shape of the raw input of model '{name}' can't be deduced: it has more than one dimension of any size.")
    known = num_elements([dim for dim in dims if dim != -1], "raw_input")
    if -1 in dims:
        open_size = len(body) // (known * size) if known else 0
        dims = tuple(open_size if dim == -1 else dim for dim in dims)
        known *= open_size
    check_size(body, spec.datatype, known, "raw_input", name, "")
    return spec.datatype, rows + dims


def _byte_size(value: int | msgspec.UnsetType) -> int:
    if value is UNSET:
        raise InvalidRequest("'shared_memory_byte_size' is required beside 'shared_memory_region'")
    return value


def _refuse_two_sources(given: InputBody) -> None:
    parameters = given.parameters
    assert parameters is not None
    found = "".join(
        f" '{name}'"
        for name, is_set in (
            ("data", given.data is not UNSET),
            ("binary_data_size", parameters.binary_data_size is not UNSET),
            ("shared_memory_region", parameters.shared_memory_region is not UNSET),
        )
        if is_set
    )
    raise InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But set{found}"
    )


def _wrong_shape() -> InvalidRequest:
    return InvalidRequest("Unable to parse 'data': Shape does not match true shape of 'data' field")

"""Inference requests and responses as gRPC's protobuf messages. The texts are Triton's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trivium.errors import InvalidRequest
from trivium.frontends.kserve.infer_request import DATATYPES, check_size
from trivium.frontends.kserve.json_tensors import pack
from trivium.frontends.kserve.parameters import EMPTY_FINAL_RESPONSE, apply_parameters
from trivium.frontends.kserve.shared_memory import RegionSlice, SharedMemoryRegions
from trivium.frontends.kserve.tensor_bytes import join_strings, num_elements
from trivium.infer import Buffer, DataType, InferRequest, InferResponse, ParameterValue, RequestedOutput, Tensor
from trivium.protocol.kserve import InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse

Regions = Mapping[str, RegionSlice]

FINAL_RESPONSE: Final = "triton_final_response"
_CHOICE: Final = "parameter_choice"
_UNSIGNED: Final = ("priority", "timeout")
_CONTENTS: Final = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}


class GrpcRequest:
    """A request, and how the client wants its answer."""

    __slots__ = ("asks_for_classes", "regions", "request", "wants_empty_final")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.regions: dict[str, RegionSlice] = {}
        self.asks_for_classes = False
        self.wants_empty_final = False


def parse_request(message: ModelInferRequest, regions: SharedMemoryRegions) -> GrpcRequest:
    """Raises `InvalidRequest`, or `ModelNotFound` for a shared memory region that isn't registered."""
    request = InferRequest(model=message.model_name, version=message.model_version, id=message.id, inputs=_inputs(message, regions))
    parsed = GrpcRequest(request)
    if message.parameters:
        parameters = {name: parameter_value(parameter) for name, parameter in message.parameters.items()}
        parsed.wants_empty_final = parameters.pop(EMPTY_FINAL_RESPONSE, False) is True
        _check_parameters(parameters)
        apply_parameters(request, parameters)
    for output in message.outputs:
        if any(output.name == known.name for known in request.outputs):
            continue
        options = {name: parameter_value(parameter) for name, parameter in output.parameters.items()} if output.parameters else {}
        class_count = _whole(options, "classification")
        parsed.asks_for_classes |= class_count > 0
        request.outputs.append(RequestedOutput(name=output.name, class_count=class_count))
        region = _region(options, regions)
        if region is not None:
            parsed.regions[output.name] = region
    return parsed


def parameter_value(parameter: InferParameter) -> ParameterValue:
    """Raises `InvalidRequest` for one that holds nothing."""
    choice = parameter.WhichOneof(_CHOICE)
    if choice is None:
        raise InvalidRequest("a parameter has no value")
    return getattr(parameter, choice)


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name in _UNSIGNED and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidRequest(f"invalid value type for '{name}' parameter, expected int64_param or uint64_param.")
        if name.startswith("triton_"):
            raise InvalidRequest(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: "
                f"{EMPTY_FINAL_RESPONSE}"
            )


# -- inputs -----------------------------------------------------------------------------------------------------------------------


def _inputs(message: ModelInferRequest, regions: SharedMemoryRegions) -> list[Tensor]:
    raw = message.raw_input_contents
    num_raw = len(raw)
    index = 0
    inputs: list[Tensor] = []
    for given in message.inputs:
        name = given.name
        datatype = DATATYPES.get(given.datatype)
        if datatype is None:
            raise InvalidRequest(f"invalid datatype '{given.datatype[:32]}' for input '{name}' for model '{message.model_name}'")
        shape = tuple(given.shape)
        count = num_elements(shape, name)
        region = _region({key: parameter_value(value) for key, value in given.parameters.items()}, regions) if given.parameters else None
        data: Buffer
        if region is not None:
            data = region.read()
        elif num_raw:
            if given.HasField("contents"):
                raise InvalidRequest(
                    f"contents field must not be specified when using raw_input_contents for '{name}' for model '{message.model_name}'"
                )
            if index == num_raw:
                raise _no_data(name, message.model_name)
            data = raw[index]
            index += 1
        else:
            data = _contents(given.contents, datatype, name, message.model_name)
        check_size(data, datatype, count, name, message.model_name, message.id)
        inputs.append(Tensor(name, datatype, shape, data))
    if index < num_raw:
        raise InvalidRequest(f"unexpected additional input data for model '{message.model_name}': {num_raw} raw_input_contents for {index} inputs")
    return inputs


def _contents(contents: InferTensorContents, datatype: DataType, name: str, model: str) -> bytes:
    field = _CONTENTS.get(datatype)
    if field is None:
        raise InvalidRequest(f"{datatype} data of input tensor '{name}' for model '{model}' can only be sent in raw_input_contents")
    given = [descriptor.name for descriptor, _ in contents.ListFields()]
    if not given:
        raise _no_data(name, model)
    if given != [field]:
        raise InvalidRequest(f"unexpected explicit tensor data for input tensor '{name}' for model '{model}': {datatype} goes into {field}")
    values: Any = getattr(contents, field)
    return join_strings(values) if datatype is DataType.BYTES else pack(values, datatype, name)


def _no_data(name: str, model: str) -> InvalidRequest:
    return InvalidRequest(f"unable to find data for input tensor '{name}' for model '{model}' in request.")


def _region(options: Mapping[str, ParameterValue], regions: SharedMemoryRegions) -> RegionSlice | None:
    region = options.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str) or "shared_memory_byte_size" not in options:
        raise InvalidRequest("shared memory needs the parameters 'shared_memory_region' (text) and 'shared_memory_byte_size'")
    return regions.slice(region, _whole(options, "shared_memory_offset"), _whole(options, "shared_memory_byte_size"))


def _whole(options: Mapping[str, ParameterValue], name: str) -> int:
    value = options.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidRequest(f"invalid value for '{name}' parameter, expected int64_param that is not negative")
    return value


# -- responses --------------------------------------------------------------------------------------------------------------------


def render_response(response: InferResponse, regions: Regions, *, is_final: bool | None = None) -> ModelInferResponse:
    """`is_final` is said of responses of a stream. Raises `InvalidRequest` for outputs that don't fit into their shared memory."""
    message = ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    outputs, contents = message.outputs, message.raw_output_contents
    for tensor in response.outputs:
        described = outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        region = regions.get(tensor.name) if regions else None
        if region is None:
            data = tensor.data
            contents.append(data if isinstance(data, bytes) else bytes(data))
            continue
        region.write(tensor.data, tensor.name)
        described.parameters["shared_memory_region"].string_param = region.region.name
        described.parameters["shared_memory_offset"].int64_param = region.offset
        described.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
        # Clients find contents by the place of their output.
        contents.append(b"")
    if response.parameters:
        for name, value in response.parameters.items():
            set_parameter(message.parameters[name], value)
    if is_final is not None:
        message.parameters[FINAL_RESPONSE].bool_param = is_final
    return message


def empty_final(response: InferResponse) -> ModelInferResponse:
    """The end of a decoupled request that had no response left to say it."""
    message = ModelInferResponse(model_name=response.model, id=response.id)
    message.parameters[FINAL_RESPONSE].bool_param = True
    return message


def set_parameter(parameter: InferParameter, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if value < 2**63:
            parameter.int64_param = value
        else:
            parameter.uint64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value

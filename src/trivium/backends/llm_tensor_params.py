"""What a tensor request asks of a language model: prompts, sampling parameters, and which outputs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trivium.backends.tensor_base import ModelSignature
from trivium.errors import InvalidRequest, UnknownField, UnsupportedFeature
from trivium.infer import Buffer, DataType, InferRequest, Tensor
from trivium.types import SamplingParams

SAMPLING_PARAMETERS: Final = ("sampling_parameters", "parameters")
"""Inputs that hold sampling parameters as JSON: Triton's name, and the one that some configurations use."""
MAX_PARAMETERS_BYTES: Final = 1 << 20
_FIELDS: Final = frozenset(SamplingParams.__struct_fields__)
_UNSUPPORTED: Final = frozenset({"lora_name", "guided_decoding", "guided_generation", "best_of", "use_beam_search"})
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class LlmTensorRequest:
    prompts: list[str]
    prompt_shape: tuple[int, ...]
    params: SamplingParams
    num_choices: int
    priority: int
    is_streaming: bool
    includes_prompt: bool
    wants: frozenset[str]
    """Optional outputs that were asked for, as in `finish_reason`."""


def parse_llm_request(request: InferRequest, signature: ModelSignature) -> LlmTensorRequest:
    """`request` fits the signature. Raises `InvalidRequest`."""
    prompt_name = next(spec.name for spec in signature.inputs if spec.datatype is DataType.BYTES)
    tensors = {tensor.name: tensor for tensor in request.inputs}
    prompts = _texts(tensors[prompt_name])
    if not prompts:
        raise InvalidRequest(f"input '{prompt_name}' of model '{signature.name}' holds no prompt")
    is_streaming = _flag(tensors, "stream") or False
    if is_streaming and len(prompts) > 1:
        raise UnsupportedFeature(f"model '{signature.name}' streams one prompt a request, got {len(prompts)}")
    excludes = _flag(tensors, "exclude_input_in_output")
    if is_streaming and excludes is False:
        raise InvalidRequest("When streaming, `exclude_input_in_output` = False is not allowed.")
    wants = frozenset(name for name in _OPTIONAL if _flag(tensors, f"return_{name}"))
    params = _params(request, tensors, wants)
    return LlmTensorRequest(
        prompts=prompts,
        prompt_shape=tensors[prompt_name].shape,
        params=params,
        num_choices=params.n,
        priority=request.priority,
        is_streaming=is_streaming,
        includes_prompt=not is_streaming and not excludes,
        wants=wants,
    )


_OPTIONAL: Final = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")


def _params(request: InferRequest, tensors: Mapping[str, Tensor], wants: frozenset[str]) -> SamplingParams:
    values: dict[str, Any] = dict(request.parameters)
    for name in SAMPLING_PARAMETERS:
        if name in tensors:
            values |= _json_object(tensors[name])
    for name in values:
        if name in _UNSUPPORTED:
            raise UnsupportedFeature(f"the sampling parameter '{name}' is not supported", param=name)
        if name not in _FIELDS:
            raise UnknownField(f"'{name[:64]}' is not a sampling parameter", param=name[:64])
    if wants & {"cumulative_logprob", "logprobs"} and values.get("logprobs") is None:
        values["logprobs"] = 0
    try:
        # Parameters that come as text, as in vLLM's back end: "0.7" is a number.
        return msgspec.convert(values, SamplingParams, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"sampling parameters: {error}") from None


def _json_object(tensor: Tensor) -> dict[str, Any]:
    texts = _texts(tensor)
    if len(texts) != 1 or len(texts[0]) > MAX_PARAMETERS_BYTES:
        raise InvalidRequest(f"input '{tensor.name}' must be one JSON object")
    if not texts[0].strip():
        return {}
    try:
        return msgspec.json.decode(texts[0], type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest(f"input '{tensor.name}' must be one JSON object") from None


def _flag(tensors: Mapping[str, Tensor], name: str) -> bool | None:
    tensor = tensors.get(name)
    if tensor is None:
        return None
    if tensor.datatype is not DataType.BOOL or len(tensor.data) == 0:
        raise InvalidRequest(f"input '{name}' must be one BOOL")
    return any(tensor.data)


def _texts(tensor: Tensor) -> list[str]:
    try:
        return [str(value, "utf-8") for value in _split(tensor.data)]
    except UnicodeDecodeError:
        raise InvalidRequest(f"input '{tensor.name}' is not UTF-8") from None


def _split(data: Buffer) -> list[memoryview]:
    view = memoryview(data)
    found: list[memoryview] = []
    position = 0
    while position < len(view):
        start = position + 4
        position = start + _LENGTH.unpack_from(view, position)[0]
        found.append(view[start:position])
    return found

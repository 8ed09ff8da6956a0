"""Request parameters: those the protocol reserves become fields of the request, the others go to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trivium.errors import InvalidRequest
from trivium.infer import InferRequest

MAX_UNSIGNED: Final = 2**64 - 1
MAX_CORRELATION_ID_LEN: Final = 128
"""Bytes of a sequence's id that is a string; Triton's limit."""
BINARY_DATA_OUTPUT: Final = "binary_data_output"
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_RESERVED_PREFIX: Final = "triton_"


def apply_parameters(request: InferRequest, parameters: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for a value of the wrong type and for names that are Triton's own."""
    for name, value in parameters.items():
        setter = _RESERVED.get(name)
        if setter is not None:
            setter(request, name, value)
        elif name.startswith(_RESERVED_PREFIX):
            raise InvalidRequest("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
        elif isinstance(value, bool | int | float | str):
            request.parameters[name] = value
        else:
            raise InvalidRequest(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _set_sequence_id(request: InferRequest, name: str, value: Any) -> None:
    if isinstance(value, str):
        if len(value.encode()) > MAX_CORRELATION_ID_LEN:
            raise InvalidRequest(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_LEN} characters")
        request.correlation_id = value
    else:
        request.correlation_id = _unsigned(name, value, "an unsigned integer or a string")


def _set_sequence_start(request: InferRequest, name: str, value: Any) -> None:
    request.sequence_start = _boolean(name, value)


def _set_sequence_end(request: InferRequest, name: str, value: Any) -> None:
    request.sequence_end = _boolean(name, value)


def _set_priority(request: InferRequest, name: str, value: Any) -> None:
    request.priority = _unsigned(name, value)


def _set_timeout(request: InferRequest, name: str, value: Any) -> None:
    request.timeout_us = _unsigned(name, value)


def _check_binary(request: InferRequest, name: str, value: Any) -> None:
    _boolean(name, value)


_RESERVED: Final = {
    "sequence_id": _set_sequence_id,
    "sequence_start": _set_sequence_start,
    "sequence_end": _set_sequence_end,
    "priority": _set_priority,
    "timeout": _set_timeout,
    BINARY_DATA_OUTPUT: _check_binary,
}


def _unsigned(name: str, value: Any, expected: str = "an unsigned integer") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_UNSIGNED:
        raise InvalidRequest(f"invalid value for parameter '{name}', expected {expected}.")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"invalid value for parameter '{name}', expected a boolean.")
    return value

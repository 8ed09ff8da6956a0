"""What a model answers with: responses, and the senders through which a decoupled model gives any number of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from trivium.infer import ParameterValue
from trivium.protocol.worker_messages import WireResponse, WireTensor
from trivium.worker.link import Link
from trivium.worker.pb import errors
from trivium.worker.pb.errors import TritonError, TritonModelException, clean
from trivium.worker.pb.tensor import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2


class InferenceResponse:
    """Tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | str | None = None, parameters: dict[str, Any] | str | None = None
    ) -> None:
        if isinstance(error, str):
            error = TritonError(error)
        if not all(isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TritonModelException("the output tensors of a response must be pb_utils.Tensor objects")
        self._tensors = [] if error is not None else list(output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """As JSON text."""
        return json.dumps(self._parameters)

    def _to_wire(self, link: Link, wanted: frozenset[str] | None) -> WireResponse:
        """`wanted`: the outputs that were asked for; None: all."""
        if self._error is not None:
            return errors.to_wire(self._error)
        tensors: list[WireTensor] = [tensor._to_wire(link) for tensor in self._tensors if wanted is None or tensor.name() in wanted]
        return WireResponse(outputs=tensors, parameters=self._parameters)

    @classmethod
    def _from_wire(cls, wire: WireResponse, link: Link) -> InferenceResponse:
        if wire.slug:
            return cls(error=errors.from_wire(wire.slug, wire.message))
        return cls([Tensor._from_wire(tensor, link) for tensor in wire.outputs], parameters=wire.parameters)


def checked_parameters(parameters: dict[str, Any] | str | None) -> dict[str, ParameterValue]:
    """A dictionary of strings, integers, booleans and floats, or the same as JSON text."""
    if parameters is None:
        return {}
    if isinstance(parameters, str):
        parameters = json.loads(parameters) if parameters else {}
    if not isinstance(parameters, dict) or not all(isinstance(key, str) for key in parameters):
        raise TritonModelException("parameters must be a dictionary whose keys are strings")
    return {str(key): _checked_parameter(key, value) for key, value in parameters.items()}


def _checked_parameter(key: str, value: Any) -> ParameterValue:
    match value:
        case bool() | np.bool_():
            return bool(value)
        case int() | np.integer():
            if not -(2**63) <= value < 2**63:
                raise TritonModelException(f"parameter '{key}' has more than 64 bits")
            return int(value)
        case float() | np.floating():
            return float(value)
        case str():
            return clean(value)
        case _:
            raise TritonModelException(f"parameter '{key}' must be a string, a number or a boolean, not {type(value).__name__}")


class ResponseSink(Protocol):
    """Where the responses of one request go."""

    def put(self, response: WireResponse) -> None: ...

    def is_cancelled(self) -> bool: ...


class InferenceResponseSender:
    """Responses to one request, from any thread, until one is sent with the final flag."""

    def __init__(self, sink: ResponseSink, link: Link, wanted: frozenset[str] | None) -> None:
        self._sink = sink
        self._link = link
        self._wanted = wanted
        self._has_ended = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Raises when the response was already complete. `response` None needs the final flag."""
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if self._has_ended:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None:
            if not is_final:
                raise TritonModelException("Inference Response object must be provided when the response flags is not set to FINAL.")
            wire = WireResponse(is_null=True)
        else:
            wire = response._to_wire(self._link, self._wanted)
        self._has_ended = is_final
        wire.is_final = is_final
        self._sink.put(wire)

    def is_cancelled(self) -> bool:
        return self._sink.is_cancelled()

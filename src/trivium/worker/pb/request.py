"""`InferenceRequest`: one that came for the model, or one that the model makes to call another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from trivium.protocol.worker_messages import WireRequest
from trivium.worker.link import Link
from trivium.worker.pb import calls
from trivium.worker.pb.errors import TritonModelException
from trivium.worker.pb.responses import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceResponse,
    InferenceResponseSender,
    ResponseSink,
    checked_parameters,
)
from trivium.worker.pb.tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 2


class PreferredMemory:
    """Where the answer of a call should lie; all tensors are in the CPU's memory, so it is a wish."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """Tracing is the server's; a model only hands the object on."""

    def get_context(self) -> str | None:
        return None


class InferenceRequest:
    """The constructor is for calls, its arguments in Triton's order: give them by name. No output names: all outputs.

    `model_version` -1 is the newest, `correlation_id` may be a string, `timeout` is in microseconds.
    """

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | str | None = None,
    ) -> None:
        if not model_name:
            raise TritonModelException("an InferenceRequest needs the name of a model")
        if not all(isinstance(tensor, Tensor) for tensor in inputs):
            raise TritonModelException("the inputs of an InferenceRequest must be pb_utils.Tensor objects")
        self._inputs: list[Tensor] | None = list(inputs)
        self._wire = WireRequest(
            inputs=[],
            outputs=list(requested_output_names),
            id=request_id,
            parameters=checked_parameters(parameters),
            correlation_id=correlation_id,
            flags=flags,
            timeout_us=timeout,
            model=model_name,
            version="" if model_version < 0 else str(model_version),
        )
        self._trace = trace
        self._sink: ResponseSink | None = None
        self._sender: InferenceResponseSender | None = None
        self._link: Link | None = None
        self._all_outputs: tuple[str, ...] = ()
        self._is_rescheduled = False

    @classmethod
    def _from_wire(
        cls, wire: WireRequest, link: Link, model: str, version: str, all_outputs: tuple[str, ...], sink: ResponseSink
    ) -> InferenceRequest:
        self = cls.__new__(cls)
        wire.model, wire.version = model, version
        self._wire = wire
        self._link = link
        self._inputs = None
        self._all_outputs = all_outputs
        self._sink = sink
        self._sender = None
        self._trace = None
        self._is_rescheduled = False
        return self

    # -- what it says -------------------------------------------------------------------------------------------------------------

    def inputs(self) -> list[Tensor]:
        if self._inputs is None:
            assert self._link is not None
            link = self._link
            self._inputs = [Tensor._from_wire(tensor, link) for tensor in self._wire.inputs]
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return list(self._wire.outputs or self._all_outputs)

    def request_id(self) -> str:
        return self._wire.id

    def correlation_id(self) -> int | str:
        return self._wire.correlation_id

    def model_name(self) -> str:
        return self._wire.model

    def model_version(self) -> int:
        return int(self._wire.version or -1)

    def flags(self) -> int:
        return self._wire.flags

    def set_flags(self, flags: int) -> None:
        self._wire.flags = flags

    def timeout(self) -> int:
        """In microseconds; 0: none was given."""
        return self._wire.timeout_us

    def priority(self) -> int:
        return self._wire.priority

    def parameters(self) -> str:
        """As JSON text."""
        return json.dumps(self._wire.parameters) if self._wire.parameters else "{}"

    def preferred_memory(self) -> PreferredMemory:
        return PreferredMemory(TRITONSERVER_MEMORY_CPU)

    def trace(self) -> InferenceTrace:
        return self._trace or InferenceTrace()

    # -- answering it -------------------------------------------------------------------------------------------------------------

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sink is None or self._link is None:
            raise TritonModelException("only a request that the server sent has a response sender")
        if self._sender is None:
            self._sender = InferenceResponseSender(self._sink, self._link, self._wanted())
        return self._sender

    def is_cancelled(self) -> bool:
        """Nobody waits for the answer any more."""
        return self._sink is not None and self._sink.is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"Release flags must be RELEASE_ALL or RELEASE_RESCHEDULE, got {flags}")
        self._is_rescheduled = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def _wanted(self) -> frozenset[str] | None:
        return frozenset(self._wire.outputs) if self._wire.outputs else None

    # -- calling another model ----------------------------------------------------------------------------------------------------

    def exec(self, decoupled: bool = False) -> InferenceResponse | calls.ResponseIterator:
        """The model's answer, an error included; with `decoupled` an iterator of its answers."""
        call = calls.begin(self._for_call())
        return calls.ResponseIterator(call) if decoupled else calls.single(call)

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse | calls.ResponseIterator:
        call = calls.begin(self._for_call(), in_background=True)
        return calls.ResponseIterator(call) if decoupled else await calls.single_async(call)

    def _for_call(self) -> WireRequest:
        link = calls.current_link()
        self._wire.inputs = [tensor._to_wire(link) for tensor in self.inputs()]
        return self._wire

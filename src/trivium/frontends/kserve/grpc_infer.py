"""`ModelInfer` and `ModelStreamInfer`.

Errors of a stream's requests are answered in the stream and don't end it. A client that leaves too much unread loses its stream.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from trivium.backends.tensor_base import Inference
from trivium.errors import InvalidRequest, TriviumError
from trivium.frontends.errors import as_trivium_error
from trivium.frontends.kserve.grpc_messages import GrpcRequest, empty_final, parse_request, render_response
from trivium.frontends.kserve.grpc_wire import GrpcCall, OneMessage, Status
from trivium.frontends.kserve.infer_response import no_answer, with_classes
from trivium.frontends.kserve.server_state import KserveState
from trivium.infer import InferResponse
from trivium.protocol.kserve import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from trivium.service.tensors import TensorService

DECOUPLED: Final = "ModelInfer RPC doesn't support models with decoupled transaction policy"
MAX_UNREAD_BYTES: Final = 64 << 20
MAX_REQUESTS: Final = 16384
"""Of one stream, at once."""


class UnaryInfer(OneMessage):
    """One `ModelInfer` call."""

    __slots__ = ("_call", "_client", "_inference", "_parsed", "_state", "_tensors")

    def __init__(self, call: GrpcCall, tensors: TensorService, state: KserveState, client: str) -> None:
        super().__init__()
        self._call = call
        self._client = client
        self._tensors = tensors
        self._state = state
        self._parsed: GrpcRequest | None = None
        self._inference: Inference | None = None

    def on_end(self) -> None:
        message = self.message()
        try:
            self._parsed = parse_request(parse_message(message), self._state.regions)
            self._parsed.request.client = self._client
            self._inference = self._tensors.infer(self._parsed.request, decoupled_refusal=DECOUPLED)
            if self._state.traces.is_on:
                self._state.traces.watch(self._parsed.request, self._inference)
        except Exception as error:
            raise as_trivium_error(error) from None
        self._inference.deliver_to(self._give, self._call.fail_with)

    def on_cancel(self) -> None:
        if self._inference is not None:
            self._inference.cancel()

    def _give(self, response: InferResponse) -> None:
        assert self._parsed is not None
        try:
            if response.is_null:
                raise no_answer(response.model)
            message = _rendered(response, self._parsed, self._tensors).SerializeToString()
        except Exception as error:
            self._call.fail_with(as_trivium_error(error))
            return
        self._call.send(message)
        self._call.finish()


class StreamInfer:
    """One `ModelStreamInfer` call. Answers go out in the order in which they come."""

    __slots__ = ("_call", "_client", "_has_requests", "_running", "_state", "_tensors")

    def __init__(self, call: GrpcCall, tensors: TensorService, state: KserveState, client: str) -> None:
        self._call = call
        self._client = client
        self._tensors = tensors
        self._state = state
        self._running: dict[_StreamRequest, Inference] = {}
        self._has_requests = True

    def on_message(self, data: bytes) -> None:
        request_id = ""
        try:
            message = parse_message(data)
            request_id = message.id
            if len(self._running) >= MAX_REQUESTS:
                raise InvalidRequest(f"a stream may have {MAX_REQUESTS} requests at once")
            parsed = parse_request(message, self._state.regions)
            parsed.request.client = self._client
            inference = self._tensors.infer(parsed.request)
            if self._state.traces.is_on:
                self._state.traces.watch(parsed.request, inference)
        except Exception as error:
            self.put_error(as_trivium_error(error), request_id)
            return
        request = _StreamRequest(self, parsed)
        self._running[request] = inference
        inference.deliver_to(request.give, request.fail)

    def on_end(self) -> None:
        self._has_requests = False
        self._finish_if_done()

    def on_cancel(self) -> None:
        running, self._running = self._running, {}
        for inference in running.values():
            inference.cancel()

    def render(self, response: InferResponse, parsed: GrpcRequest) -> ModelInferResponse:
        return _rendered(response, parsed, self._tensors, is_final=response.is_final)

    def put(self, message: ModelInferResponse) -> None:
        self._send(ModelStreamInferResponse(infer_response=message))

    def put_error(self, error: TriviumError, request_id: str) -> None:
        self._send(ModelStreamInferResponse(error_message=error.message, infer_response=ModelInferResponse(id=request_id)))

    def end_request(self, request: _StreamRequest) -> None:
        if self._running.pop(request, None) is not None:
            self._finish_if_done()

    def cancel_request(self, request: _StreamRequest) -> None:
        inference = self._running.pop(request, None)
        if inference is not None:
            inference.cancel()
            self._finish_if_done()

    def _send(self, message: ModelStreamInferResponse) -> None:
        self._call.send(message.SerializeToString())
        if self._call.queued_bytes > MAX_UNREAD_BYTES:
            self._call.fail(Status.RESOURCE_EXHAUSTED, "too many responses were left unread")
            self.on_cancel()

    def _finish_if_done(self) -> None:
        if not self._has_requests and not self._running:
            self._call.finish()


class _StreamRequest:
    """One request of a stream."""

    __slots__ = ("_parsed", "_stream")

    def __init__(self, stream: StreamInfer, parsed: GrpcRequest) -> None:
        self._stream = stream
        self._parsed = parsed

    def give(self, response: InferResponse) -> None:
        try:
            if not response.is_null:
                self._stream.put(self._stream.render(response, self._parsed))
            elif self._parsed.wants_empty_final:
                self._stream.put(empty_final(response))
        except Exception as error:
            self._stream.put_error(as_trivium_error(error), self._parsed.request.id)
            self._stream.cancel_request(self)
            return
        if response.is_final:
            self._stream.end_request(self)

    def fail(self, error: TriviumError) -> None:
        self._stream.put_error(error, self._parsed.request.id)
        self._stream.end_request(self)


def _rendered(response: InferResponse, parsed: GrpcRequest, tensors: TensorService, *, is_final: bool | None = None) -> ModelInferResponse:
    if parsed.asks_for_classes:
        signature = tensors.signature(response.model, response.version)
        response = with_classes(response, parsed.request, signature.outputs, batches=signature.max_batch_size > 0)
    return render_response(response, parsed.regions, is_final=is_final)


def parse_message(data: bytes) -> ModelInferRequest:
    """Raises `InvalidRequest`."""
    try:
        return ModelInferRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("the request is not a valid protobuf message") from None

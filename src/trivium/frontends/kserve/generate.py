"""Triton's generate extension: a flat JSON object in, tensors by the names of the model's inputs; outputs by their names out, whole or as events.

Keys that name an input become tensors (a scalar is one element); so do those inside `parameters`. `id` is the request's. Any other scalar
becomes a request parameter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, cast

import msgspec

from trivium.backends.tensor_base import Inference, ModelSignature
from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, RequestCancelled
from trivium.frontends.asgi import Receive, Scope, Send, encode_json, send_bytes
from trivium.frontends.clients import client_of
from trivium.frontends.errors import as_trivium_error
from trivium.frontends.kserve.errors import error_body
from trivium.frontends.kserve.json_tensors import flatten, pack, unpack
from trivium.frontends.kserve.parameters import apply_parameters
from trivium.frontends.kserve.trace_writer import TraceWriter
from trivium.frontends.limits import parse_json, read_body
from trivium.frontends.sse import DisconnectWatch, start_stream
from trivium.infer import InferRequest, InferResponse, Tensor, TensorSpec
from trivium.service.tensors import TensorService

NOT_ONE: Final = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])


class GenerateRoute:
    """The ASGI endpoint of `/generate`, or with `is_stream` of `/generate_stream`."""

    def __init__(self, tensors: TensorService, config: HttpConfig, traces: TraceWriter, *, is_stream: bool) -> None:
        self._tensors = tensors
        self._traces = traces
        self._config = config
        self._is_stream = is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, max_bytes=self._config.max_body_bytes, timeout_s=self._config.body_timeout_s)
        fields = parse_json(body, _OBJECT)
        path = scope["path_params"]
        model, version = path["model"], path.get("version", "")
        request = parse_generate(fields, self._tensors.signature(model, version), version)
        request.client = client_of(scope, self._config)
        inference = self._tensors.infer(request)
        if self._traces.is_on:
            self._traces.watch(request, inference)
        try:
            with DisconnectWatch(receive, inference.fail):
                if self._is_stream:
                    await _stream(inference, send)
                else:
                    await send_bytes(send, encode_json(document_of(await _only_response(inference))))
        finally:
            inference.cancel()


async def _only_response(inference: Inference) -> InferResponse:
    """Raises `InvalidRequest` unless the model gives exactly one."""
    found: InferResponse | None = None
    async for response in _responses(inference):
        if found is not None:
            raise InvalidRequest(NOT_ONE)
        found = response
    if found is None:
        raise InvalidRequest(NOT_ONE)
    return found


async def _stream(inference: Inference, send: Send) -> None:
    """Errors before the first response are raised, later ones sent as an event."""
    has_started = False
    try:
        async for response in _responses(inference):
            event = b"data: %b\n\n" % encode_json(document_of(response))
            if not has_started:
                has_started = True
                await start_stream(send)
            await send({"type": "http.response.body", "body": event, "more_body": True})
    except RequestCancelled:
        raise
    except Exception as error:
        if not has_started:
            raise
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % error_body(as_trivium_error(error)), "more_body": True})
    if not has_started:
        await start_stream(send)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _responses(inference: Inference) -> AsyncIterator[InferResponse]:
    """What the model says, without the empty end of a decoupled one."""
    async for response in inference:
        if not response.is_null:
            yield response


# -- the request ------------------------------------------------------------------------------------------------------------------


def parse_generate(fields: dict[str, Any], signature: ModelSignature, version: str) -> InferRequest:
    """Raises `InvalidRequest`."""
    request_id = fields.pop("id", "")
    if not isinstance(request_id, str):
        request_id = encode_json(request_id).decode()
    specs = {spec.name: spec for spec in signature.inputs}
    nested: Any = {} if "parameters" in specs else fields.pop("parameters", {})
    if not isinstance(nested, dict):
        raise InvalidRequest("'parameters' must be an object", param="parameters")
    fields = {**fields, **cast("dict[str, Any]", nested)}
    inputs = [_tensor(value, specs[name], signature) for name, value in fields.items() if name in specs]
    request = InferRequest(model=signature.name, version=version, id=request_id, inputs=inputs)
    apply_parameters(request, {name: value for name, value in fields.items() if name not in specs})
    return request


def _tensor(value: Any, spec: TensorSpec, signature: ModelSignature) -> Tensor:
    """A scalar or a list as the input's tensor: with a batch dimension of one if the model batches."""
    values = flatten(value if isinstance(value, list) else [value], spec.datatype, spec.name)
    batched = signature.max_batch_size > 0
    dims = spec.shape[1:] if batched else spec.shape
    fixed = 1
    for dim in dims:
        fixed *= max(dim, 1)
    shape = tuple(dims)
    if dims.count(-1) == 1 and len(values) % fixed == 0:
        shape = tuple(len(values) // fixed if dim == -1 else dim for dim in dims)
    elif fixed != len(values) or -1 in dims:
        shape = (len(values),)
    return Tensor(spec.name, spec.datatype, (1, *shape) if batched else shape, pack(values, spec.datatype, spec.name))


# -- the answer -------------------------------------------------------------------------------------------------------------------


def document_of(response: InferResponse) -> dict[str, Any]:
    """Keys in order of the alphabet, tensors of one element as scalars."""
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document |= {"model_name": response.model, "model_version": response.version, **response.parameters}
    for tensor in response.outputs:
        values = unpack(tensor.data, tensor.datatype, tensor.name)
        document[tensor.name] = values[0] if len(values) == 1 else values
    return dict(sorted(document.items()))

"""An answer over HTTP: its JSON and, behind it, the outputs that go as binary data. Order of the keys and headers are Triton's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trivium.errors import InternalError
from trivium.frontends.asgi import JSON, Headers
from trivium.frontends.kserve.classification import classify
from trivium.frontends.kserve.infer_request import OutputForms
from trivium.frontends.kserve.json_tensors import unpack
from trivium.infer import Buffer, InferRequest, InferResponse, Tensor, TensorSpec

OCTET_STREAM: Final = b"application/octet-stream"
_encode = msgspec.json.Encoder().encode


def render(response: InferResponse, forms: OutputForms) -> tuple[bytes, bytes, Headers]:
    """Body, content type and further headers. Raises `InvalidRequest` for what can't be said in the form asked for."""
    tail: list[Buffer] = []
    outputs = [_output(tensor, forms, tail) for tensor in response.outputs]
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model
    document["model_version"] = response.version
    if response.parameters:
        document["parameters"] = response.parameters
    document["outputs"] = outputs
    head = _encode(document)
    if not tail:
        return head, JSON, []
    return b"".join((head, *tail)), OCTET_STREAM, [(b"inference-header-content-length", b"%d" % len(head))]


def _output(tensor: Tensor, forms: OutputForms, tail: list[Buffer]) -> dict[str, Any]:
    name, data = tensor.name, tensor.data
    described: dict[str, Any] = {"name": name, "datatype": tensor.datatype, "shape": tensor.shape}
    region = None if forms.regions is None else forms.regions.get(name)
    if region is not None:
        # Nothing more is said of it, as in Triton: its C++ client takes any parameters for those of binary data.
        region.write(data, name)
    elif forms.is_binary_for(name):
        described["parameters"] = {"binary_data_size": len(data)}
        tail.append(data)
    else:
        described["data"] = unpack(data, tensor.datatype, name)
    return described


def with_classes(response: InferResponse, request: InferRequest, outputs: tuple[TensorSpec, ...], *, batches: bool) -> InferResponse:
    """The response with classes in place of the outputs for which the request asks for them. Raises `InvalidRequest`."""
    counts = {output.name: output.class_count for output in request.outputs if output.class_count}
    if not counts:
        return response
    labels = {spec.name: spec.labels for spec in outputs}
    found = [
        classify(tensor, counts[tensor.name], labels.get(tensor.name, ()), batches=batches) if tensor.name in counts else tensor
        for tensor in response.outputs
    ]
    return msgspec.structs.replace(response, outputs=found)


def no_answer(model: str) -> InternalError:
    return InternalError(f"model '{model}' ended without an answer")

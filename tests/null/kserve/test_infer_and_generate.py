"""Requests over HTTP: where tensors come from, what is claimed and what arrives, and the flat form of `generate`."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.backends.tensor_base import ModelSignature
from trivium.errors import InvalidRequest, ModelNotFound, TriviumError, UnsupportedFeature
from trivium.frontends.kserve import shared_memory
from trivium.frontends.kserve.generate import document_of, parse_generate
from trivium.frontends.kserve.infer_request import InferParser
from trivium.frontends.kserve.infer_response import render
from trivium.frontends.kserve.shared_memory import SharedMemoryRegions
from trivium.infer import DataType, InferResponse, Tensor, TensorSpec

FP32 = TensorSpec(name="IN", datatype=DataType.FP32, shape=(-1, 4))
INPUT: dict[str, Any] = {"name": "IN", "shape": [1, 4], "datatype": "FP32"}


def _signature(*inputs: TensorSpec, max_batch_size: int = 8) -> ModelSignature:
    return ModelSignature(name="m", version=1, platform="", backend="python", inputs=inputs or (FP32,), outputs=(), max_batch_size=max_batch_size)


class _Tensors:
    def __init__(self, signature: ModelSignature) -> None:
        self._signature = signature

    def signature(self, name: str, version: str = "") -> ModelSignature:
        return self._signature


def _parser(signature: ModelSignature | None = None, regions: SharedMemoryRegions | None = None) -> InferParser:
    return InferParser(_Tensors(signature or _signature()), regions or SharedMemoryRegions(), max_json_bytes=100_000)  # type: ignore[arg-type]


def _parse(document: Any, tail: bytes = b"", *, length: bytes | None = None, parser: InferParser | None = None) -> Any:
    head = document if isinstance(document, bytes) else json.dumps(document).encode()
    return (parser or _parser()).parse("m", "", head + tail, length or (b"%d" % len(head) if tail else None))


def test_binary_tensors_are_taken_in_order_without_a_copy() -> None:
    inputs = [
        {**INPUT, "name": "A", "parameters": {"binary_data_size": 16}},
        {**INPUT, "name": "B", "data": [1, 2, 3, 4]},
        {"name": "C", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 9}},
    ]
    tail = struct.pack("<4f", 5, 6, 7, 8) + b"\x01\x00\x00\x00x\x00\x00\x00\x00"
    request, _ = _parse({"inputs": inputs}, tail)
    assert [bytes(tensor.data) for tensor in request.inputs] == [tail[:16], struct.pack("<4f", 1, 2, 3, 4), tail[16:]]
    assert isinstance(request.inputs[0].data, memoryview)


def test_reserved_parameters_become_fields_and_others_go_to_the_model() -> None:
    parameters = {"sequence_id": 5, "sequence_start": True, "sequence_end": False, "priority": 2, "timeout": 99, "mine": "x", "rate": 0.5}
    request, forms = _parse({"inputs": [{**INPUT, "data": [1, 2, 3, 4]}], "id": "r", "parameters": {**parameters, "binary_data_output": True}})
    assert (request.id, request.correlation_id, request.sequence_start, request.priority, request.timeout_us) == ("r", 5, True, 2, 99)
    assert request.parameters == {"mine": "x", "rate": 0.5}
    assert forms.is_binary_for("OUT")


def test_each_output_may_have_a_form_of_its_own() -> None:
    outputs = [{"name": "A", "parameters": {"binary_data": False}}, {"name": "B", "parameters": {"classification": 3}}, {"name": "B"}]
    request, forms = _parse({"inputs": [{**INPUT, "data": [1, 2, 3, 4]}], "outputs": outputs, "parameters": {"binary_data_output": True}})
    assert [(output.name, output.class_count) for output in request.outputs] == [("A", 0), ("B", 3)]
    assert (forms.is_binary_for("A"), forms.is_binary_for("B")) == (False, True)


def test_tensors_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "DIRECTORY", str(tmp_path))
    (tmp_path / "region").write_bytes(struct.pack("<8f", *range(8)))
    regions = SharedMemoryRegions()
    regions.register("r", "region", 0, 32)
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    body = {"inputs": [{**INPUT, "parameters": place}], "outputs": [{"name": "OUT", "parameters": {**place, "shared_memory_offset": 16}}]}
    request, forms = _parse(body, parser=_parser(regions=regions))
    assert request.inputs[0].data == struct.pack("<4f", 0, 1, 2, 3)
    response = InferResponse(model="m", version="1", outputs=[Tensor("OUT", DataType.FP32, (1, 4), bytes(16))])
    rendered = json.loads(render(response, forms)[0])
    assert rendered["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 4]}]
    assert (tmp_path / "region").read_bytes()[16:] == bytes(16)


def test_bare_nan_and_infinity_are_read() -> None:
    request, _ = _parse(b'{"inputs":[{"name":"IN","shape":[3],"datatype":"FP32","data":[NaN,-Infinity,1]}]}')
    assert [str(value) for value in struct.unpack("<3f", request.inputs[0].data)] == ["nan", "-inf", "1.0"]


@pytest.mark.parametrize(
    ("document", "tail", "length", "text"),
    [
        ({"inputs": [{**INPUT, "parameters": {"binary_data_size": 16}}]}, bytes(12), None, "expecting 4 additional bytes"),
        ({"inputs": [{**INPUT, "parameters": {"binary_data_size": 16}}]}, bytes(17), None, "unexpected additional input data"),
        ({"inputs": [{**INPUT, "parameters": {"binary_data_size": 12}}]}, bytes(12), None, "Expected 16, got 12"),
        ({"inputs": [{**INPUT, "parameters": {"binary_data_size": -16}}]}, bytes(16), None, "must not be negative"),
        ({"inputs": [{**INPUT, "parameters": {"binary_data_size": 1 << 62}}]}, bytes(16), None, "additional bytes"),
        ({"inputs": [{**INPUT, "shape": [1 << 31, 1 << 31], "parameters": {"binary_data_size": 16}}]}, bytes(16), None, "too many elements"),
        ({"inputs": [{**INPUT, "shape": [1 << 40], "data": [1]}]}, b"", None, "Shape does not match"),
        ({"inputs": [{**INPUT, "shape": [10**30], "data": [1]}]}, b"", None, "inputs\\[0\\].shape|too many elements"),
        ({"inputs": [{**INPUT, "data": [1, 2]}]}, b"", None, "Shape does not match"),
        ({"inputs": [INPUT]}, b"", None, "must have data"),
        ({"inputs": [{**INPUT, "data": [1], "parameters": {"shared_memory_region": "r"}}]}, b"", None, "'data' 'shared_memory_region'"),
        ({"inputs": [{**INPUT, "parameters": {"shared_memory_region": "r"}}]}, b"", None, "shared_memory_byte_size"),
        ({"inputs": [{**INPUT, "datatype": "FLOAT", "data": [1]}]}, b"", None, "invalid datatype for input IN"),
        ({"inputs": [], "parameters": {"triton_x": 1}}, b"", None, "reserved"),
        ({"inputs": [], "parameters": {"x": None}}, b"", None, "'x' has invalid type"),
        ({"inputs": [], "parameters": {"priority": -1}}, b"", None, "'priority'"),
        ({"inputs": [], "parameters": {"sequence_id": "x" * 129}}, b"", None, "128"),
        ({"inputs": [], "parameters": {"sequence_start": 1}}, b"", None, "boolean"),
        ({"inputs": [], "outputs": [{"name": "O", "parameters": {"classification": -1}}]}, b"", None, "classification"),
        ({"inputs": []}, b"", b"99999", "should be in range"),
        ({"inputs": []}, b"", b"-1", "should be in range"),
        ({"inputs": []}, b"", b"1" * 30, "whole number"),
        ({"inputs": []}, b"", b"2_0", "whole number"),
        ({"inputs": [], "id": "x" * 200_000}, b"", None, "can't be larger"),
        (b"[" * 100_000, b"", None, "Expected 'object'"),
        (
            {"inputs": [{"name": "S", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}]},
            b"\x01\x00\x00\x00x",
            None,
            "elements 1",
        ),
        ({"inputs": [{"name": "S", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}]}, b"\x09\x00\x00\x00x", None, "add up"),
    ],
)
def test_what_is_claimed_is_held_against_what_arrived(document: Any, tail: bytes, length: bytes | None, text: str) -> None:
    with pytest.raises(TriviumError, match=text):
        _parse(document, tail, length=length)


@given(st.binary(max_size=300), st.one_of(st.none(), st.integers(-5, 310)))
def test_any_body_is_a_request_or_an_error(body: bytes, length: int | None) -> None:
    with contextlib.suppress(InvalidRequest, ModelNotFound, UnsupportedFeature):
        _parser().parse("m", "", body, None if length is None else b"%d" % length)


# -- raw binary -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "body", "shape"),
    [
        (FP32, 8, bytes(16), (1, 4)),
        (TensorSpec(name="IN", datatype=DataType.UINT8, shape=(-1, 2)), 0, bytes(6), (3, 2)),
        (TensorSpec(name="IN", datatype=DataType.BYTES, shape=(1,)), 0, b"\x01\x00\x00\x00x", (1,)),
        (TensorSpec(name="IN", datatype=DataType.FP32, shape=(-1, -1)), 0, bytes(4), None),
        (TensorSpec(name="IN", datatype=DataType.BYTES, shape=(2,)), 0, b"\x00" * 8, None),
        (FP32, 8, bytes(15), None),
    ],
)
def test_a_raw_body_is_the_only_input(spec: TensorSpec, max_batch_size: int, body: bytes, shape: tuple[int, ...] | None) -> None:
    parser = _parser(_signature(spec, max_batch_size=max_batch_size))
    if shape is None:
        with pytest.raises(TriviumError):
            parser.parse("m", "", body, b"0")
    else:
        request, forms = parser.parse("m", "", body, b"0")
        assert (request.inputs[0].shape, request.inputs[0].data) == (shape, body)
        assert forms.is_binary


def test_a_raw_body_needs_a_model_with_one_input() -> None:
    with pytest.raises(InvalidRequest, match="only have 1 input"):
        _parser(_signature(FP32, FP32)).parse("m", "", bytes(16), b"0")


# -- generate ---------------------------------------------------------------------------------------------------------------------

TEXT = TensorSpec(name="text_input", datatype=DataType.BYTES, shape=(1,))
NUMBERS = TensorSpec(name="numbers", datatype=DataType.FP32, shape=(-1,))


def _generate(fields: dict[str, Any], *specs: TensorSpec, max_batch_size: int = 0) -> Any:
    return parse_generate(fields, _signature(*(specs or (TEXT, NUMBERS)), max_batch_size=max_batch_size), "")


def test_keys_that_name_inputs_become_tensors() -> None:
    request = _generate({"text_input": "hi", "numbers": [1, 2], "id": "r", "parameters": {"temperature": 0.5}, "top_k": 3})
    assert {tensor.name: (tensor.shape, bytes(tensor.data)) for tensor in request.inputs} == {
        "text_input": ((1,), b"\x02\x00\x00\x00hi"),
        "numbers": ((2,), struct.pack("<2f", 1, 2)),
    }
    assert (request.id, request.parameters) == ("r", {"top_k": 3, "temperature": 0.5})


def test_a_batching_model_gets_one_row() -> None:
    batched = TensorSpec(name="text_input", datatype=DataType.BYTES, shape=(-1, 1))
    assert _generate({"text_input": "hi"}, batched, max_batch_size=8).inputs[0].shape == (1, 1)


@pytest.mark.parametrize(
    "fields",
    [{"text_input": 1}, {"text_input": {"a": 1}}, {"text_input": "x", "other": {"a": 1}}, {"text_input": "x", "other": [1]}, {"parameters": 5}],
)
def test_what_generate_can_not_flatten_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        _generate(fields)


def test_answers_are_flat_and_sorted() -> None:
    outputs = [Tensor("z", DataType.FP32, (2,), struct.pack("<2f", 1, 2)), Tensor("a", DataType.BYTES, (1,), b"\x02\x00\x00\x00hi")]
    document = document_of(InferResponse(model="m", version="1", id="r", outputs=outputs))
    assert list(document.items()) == [("a", "hi"), ("id", "r"), ("model_name", "m"), ("model_version", "1"), ("z", [1.0, 2.0])]

"""Joining requests to one batch and taking the outputs apart, with a scripted session in place of a library."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers_worker import load_here, request

from trivium.errors import ModelLoadError
from trivium.infer import DataType, InferRequest
from trivium.protocol.shared_region import SharedRegion
from trivium.protocol.worker_messages import Batch, WireRequest, WireResponse, WireTensor
from trivium.worker.link import Link
from trivium.worker.native import NativeInstance
from trivium.worker.ragged import BatchInputs
from trivium.worker.tensors import to_array


class Scripted:
    def __init__(self, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self.answer = answer
        self.inputs: dict[str, Any] = {}
        self.outputs: list[str] = []

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> Mapping[str, Any]:
        self.inputs, self.outputs = dict(inputs), list(outputs)
        return self.answer(inputs)


@pytest.fixture
def link() -> Iterator[Link]:
    ours, theirs = socket.socketpair()
    yield Link(theirs, SharedRegion.create(2**20), SharedRegion.create(2**20))
    ours.close()
    theirs.close()


def wire(made: InferRequest) -> WireRequest:
    tensors = [WireTensor(tensor.name, tensor.datatype, tensor.shape, memoryview(bytearray(tensor.data))) for tensor in made.inputs]
    return WireRequest(inputs=tensors, outputs=[output.name for output in made.outputs])


def config(**fields: Any) -> dict[str, Any]:
    outputs = [{"name": "y", "data_type": "TYPE_FP32"}, {"name": "z", "data_type": "TYPE_STRING"}]
    return {"name": "m", "max_batch_size": 8, "input": [{"name": "x"}, {"name": "n"}], "output": outputs, **fields}


def value(response: WireResponse | None, name: str) -> Any:
    assert response is not None
    assert not response.slug, response.message
    tensor = next(tensor for tensor in response.outputs if tensor.name == name)
    return to_array(tensor.datatype, tensor.shape, tensor.data).tolist()


def double(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"y": inputs["x"] * 2, "z": inputs["n"]}


def test_rows_go_in_together_and_come_back_apart(link: Link) -> None:
    session = Scripted(double)
    instance = NativeInstance(session, config(), link)
    first = wire(request(x=np.array([[1], [2]], np.float32), n=np.array([["a"], ["b"]], np.object_)))
    second = wire(request(n=np.array([["c"]], np.object_), x=np.array([[3]], np.float32), outputs=["y"]))
    done = instance.run(Batch(5, [first, second]))
    assert (done.first_key, session.outputs) == (5, ["y", "z"])
    assert session.inputs["x"].flags.writeable
    assert (value(done.responses[0], "y"), value(done.responses[0], "z")) == ([[2.0], [4.0]], [[b"a"], [b"b"]])
    assert value(done.responses[1], "y") == [[6.0]]
    assert done.responses[1] is not None
    assert len(done.responses[1].outputs) == 1
    assert done.end_ns >= done.begin_ns
    instance.run(Batch(7, [second]))
    assert session.outputs == ["y"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda inputs: {"y": inputs["x"][:1]}, "output 'y' has shape [1, 1] for a batch of 3"),
        (lambda inputs: {"y": np.float32(3)}, "output 'y' has shape [] for a batch of 3"),
        (lambda inputs: {"y": inputs["x"].astype(np.float64)}, "output 'y' is float64, the configuration says FP32"),
        (lambda inputs: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_library_does_wrong_fails_the_batch(link: Link, answer: Any, text: str) -> None:
    instance = NativeInstance(Scripted(answer), config(), link)
    made = [wire(request(x=np.zeros((count, 1), np.float32), n=np.array([["a"]] * count, np.object_))) for count in (1, 2)]
    for response in instance.run(Batch(1, made)).responses:
        assert response is not None
        assert response.slug == "internal_error"
        assert text in response.message


def test_states_and_scalars(link: Link) -> None:
    states = {"state": [{"input_name": "s", "output_name": "s2", "data_type": "TYPE_INT64", "dims": [1]}]}
    session = Scripted(lambda inputs: {"y": np.float32(inputs["x"] + 1), "s2": inputs["s"] + 1})
    made = config(max_batch_size=0, output=[{"name": "y", "data_type": "TYPE_FP32"}], sequence_batching=states)
    instance = NativeInstance(session, made, link, frozenset({"x", "y"}))
    (response,) = instance.run(Batch(1, [wire(request(x=np.array([2], np.float32), s=np.array([7])))])).responses
    assert session.inputs["x"].shape == ()
    assert (value(response, "y"), value(response, "s2")) == ([3.0], [8])


def array_of(tensor: WireTensor) -> Any:
    return to_array(tensor.datatype, tensor.shape, tensor.data)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 5]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[3], [2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 2]),
    ],
)
def test_ragged_inputs_lie_end_to_end(kind: str, expected: list[Any]) -> None:
    derived = {"kind": kind, "target_name": ["index"], "data_type": "TYPE_INT32", "source_input": ["r"]}
    inputs = BatchInputs({"input": [{"name": "r", "allow_ragged_batch": True}, {"name": "x"}], "batch_input": [derived]})
    made = [wire(request(r=np.ones((1, count), np.float32), x=np.full((1, 1), count, np.float32))) for count in (3, 2)]
    joined, rows = inputs.join(made, array_of)
    assert rows == [1, 1]
    assert joined["r"].shape == (5,)
    assert joined["x"].tolist() == [[3.0], [2.0]]
    assert (joined["index"].tolist(), joined["index"].dtype) == (expected, np.int32)


def test_outputs_are_scattered_in_the_shape_of_an_input(link: Link) -> None:
    scattered = {"target_name": ["y"], "source_input": ["r"]}
    made = config(input=[{"name": "r", "allow_ragged_batch": True}], output=[{"name": "y", "data_type": "TYPE_FP32"}], batch_output=[scattered])
    requests = [wire(request(r=np.full((1, count), count, np.float32))) for count in (3, 2)]
    done = NativeInstance(Scripted(lambda inputs: {"y": inputs["r"] + 1}), made, link).run(Batch(1, requests))
    assert [value(response, "y") for response in done.responses] == [[[4.0, 4.0, 4.0]], [[3.0, 3.0]]]
    done = NativeInstance(Scripted(lambda inputs: {"y": inputs["r"][1:]}), made, link).run(Batch(1, requests))
    assert all(response is not None and "has 4 elements, the batch's 'r' 5" in response.message for response in done.responses)


def test_ragged_requests_through_an_instance(link: Link) -> None:
    derived = {"kind": "BATCH_ELEMENT_COUNT", "target_name": ["index"], "source_input": ["r"]}
    made = config(input=[{"name": "r", "allow_ragged_batch": True}], output=[{"name": "y", "data_type": "TYPE_FP32"}], batch_input=[derived])
    ends = Scripted(lambda inputs: {"y": np.add.reduceat(inputs["r"], [0, int(inputs["index"][0])])[:, None]})
    requests = [wire(request(r=np.ones((1, count), np.float32))) for count in (3, 2)]
    done = NativeInstance(ends, made, link).run(Batch(1, requests))
    assert [value(response, "y") for response in done.responses] == [[[3.0]], [[2.0]]]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"batch_output": [{"kind": "BATCH_OTHER"}]}, "batch_output kind 'BATCH_OTHER' is not known"),
        ({"batch_input": [{"kind": "BATCH_OTHER"}]}, "'BATCH_OTHER' is not known"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        BatchInputs(fields)


def test_a_missing_package_is_named_with_its_extra(tmp_path: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"needs the package 'tensorrt': pip install 'trivium\[tensorrt\]'"):
        load_here(tmp_path, 'backend: "tensorrt"')
    with pytest.raises(ModelLoadError, match="unknown back end 'other'; there are fil, onnxruntime"):
        load_here(tmp_path, 'backend: "other"')


def test_brain_floats_are_their_bits(link: Link) -> None:
    session = Scripted(lambda inputs: {"y": inputs["x"]})
    instance = NativeInstance(session, config(output=[{"name": "y", "data_type": "TYPE_BF16"}]), link)
    bits = np.array([[1], [2]], np.uint16)
    tensor = WireTensor("x", DataType.BF16, (2, 1), memoryview(bytearray(bits.tobytes())))
    (response,) = instance.run(Batch(1, [WireRequest(inputs=[tensor])])).responses
    assert response is not None
    assert (response.outputs[0].datatype, bytes(response.outputs[0].data)) == (DataType.BF16, bits.tobytes())

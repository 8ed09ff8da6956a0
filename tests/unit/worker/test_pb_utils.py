"""`triton_python_backend_utils` without a server: tensors, errors, parameters, configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trivium.infer import DataType
from trivium.protocol.worker_messages import WireTensor
from trivium.worker.pb import utils as pb_utils
from trivium.worker.pb.responses import checked_parameters
from trivium.worker.tensors import to_data


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros((2, 3), np.float32), "TYPE_FP32"),
        (np.zeros(0, np.int8), "TYPE_INT8"),
        (np.array(3, np.uint64), "TYPE_UINT64"),
        (np.zeros(2, ">f8"), "TYPE_FP64"),
        (np.array([b"a", "b"], np.object_), "TYPE_STRING"),
        (np.array(["text"]), "TYPE_STRING"),
        (np.array([True]), "TYPE_BOOL"),
    ],
)
def test_tensors_know_what_they_are(array: Any, name: str) -> None:
    tensor = pb_utils.Tensor("x", array)
    assert (tensor.name(), tensor.triton_dtype(), tensor.shape(), tensor.is_cpu()) == ("x", name, list(array.shape), True)
    assert np.array_equal(tensor.as_numpy(), array)


@pytest.mark.parametrize(("name", "array"), [("x", np.zeros(1, np.complex64)), ("x", np.zeros(1, "datetime64[s]")), (5, np.zeros(1))])
def test_what_can_be_no_tensor(name: Any, array: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.Tensor(name, array)


def test_dlpack_both_ways() -> None:
    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensor = pb_utils.Tensor.from_dlpack("x", source)
    assert torch.equal(torch.from_dlpack(tensor), source)
    assert torch.equal(torch.utils.dlpack.from_dlpack(tensor.to_dlpack()), source)
    assert np.array_equal(pb_utils.Tensor.from_dlpack("x", torch.utils.dlpack.to_dlpack(source)).as_numpy(), source.numpy())
    brain = pb_utils.Tensor.from_dlpack("x", source.to(torch.bfloat16))
    assert (brain.triton_dtype(), brain.shape()) == ("TYPE_BF16", [2, 3])
    assert torch.equal(torch.from_dlpack(brain), source.to(torch.bfloat16))
    with pytest.raises(pb_utils.TritonModelException, match="BF16"):
        brain.as_numpy()
    with pytest.raises(pb_utils.TritonModelException, match="BYTES"):
        pb_utils.Tensor("x", np.array([b"a"], np.object_)).to_dlpack()


@pytest.mark.parametrize("data", [b"\x01\0\0\0", b"\xff\xff\xff\xff", b"\x01\0\0\0ab\0", b"ab"])
def test_wrong_bytes_are_the_models_to_handle(data: bytes) -> None:
    tensor = pb_utils.Tensor._from_wire(WireTensor("x", DataType.BYTES, (1,), memoryview(data)), None)  # type: ignore[arg-type]
    with pytest.raises(pb_utils.TritonModelException, match="BYTES tensor of shape"):
        tensor.as_numpy()
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.deserialize_bytes_tensor(data)


def test_serialized_bytes() -> None:
    array = np.array([[b"ab", b""], ["Ä", b"\xff"]], np.object_)
    (encoded,) = pb_utils.serialize_byte_tensor(array).reshape(-1)
    assert encoded == bytes(to_data(array))
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"ab", b"", "Ä".encode(), b"\xff"]
    assert pb_utils.serialize_byte_tensor(np.array([], np.object_)).size == 0


def test_types_by_name_and_number() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.triton_string_to_numpy("TYPE_BF16") is None
    assert pb_utils.triton_to_numpy_type(11) is np.float32
    assert pb_utils.triton_to_numpy_type(99) is None
    assert pb_utils.numpy_to_triton_type(np.object_) == 13


def test_parameters_are_plain_values() -> None:
    assert checked_parameters({"a": np.float32(0.5), "b": np.int64(3), "c": True, "d": "x"}) == {"a": 0.5, "b": 3, "c": True, "d": "x"}
    assert checked_parameters('{"a": 1}') == {"a": 1}
    for wrong in ({"a": 2**64}, {"a": [1]}, {"a": None}, {1: "a"}):
        with pytest.raises(pb_utils.TritonModelException):
            checked_parameters(wrong)  # type: ignore[arg-type]


def test_responses_and_errors() -> None:
    response = pb_utils.InferenceResponse(error="bad")
    assert (response.has_error(), response.error().code(), response.output_tensors()) == (True, pb_utils.TritonError.INTERNAL, [])  # type: ignore[union-attr]
    response = pb_utils.InferenceResponse([pb_utils.Tensor("x", np.zeros(1))])
    assert pb_utils.get_output_tensor_by_name(response, "x") is response.output_tensors()[0]
    assert pb_utils.get_output_tensor_by_name(response, "y") is None
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.InferenceResponse([np.zeros(1)])  # type: ignore[list-item]
    with pytest.raises(pb_utils.TritonModelException, match="inside of a model"):
        pb_utils.is_model_ready("x")
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        pb_utils.nothing


def config(**fields: Any) -> pb_utils.ModelConfig:
    return pb_utils.ModelConfig({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields})


def test_completing_a_configuration() -> None:
    made = config(input=[{"name": "x", "data_type": "TYPE_INVALID", "dims": []}], max_batch_size=4)
    made.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
    made.add_input({"name": "y", "data_type": "TYPE_FP32", "dims": [2], "optional": True})
    made.add_output({"name": "z", "data_type": "TYPE_FP32", "dims": [3]})
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    made.set_model_transaction_policy({"decoupled": True})
    found = made.as_dict()
    assert [tensor["dims"] for tensor in found["input"]] == [[1], [2]]
    assert (found["max_batch_size"], found["dynamic_batching"], found["model_transaction_policy"]) == (4, {}, {"decoupled": True})
    assert pb_utils.using_decoupled_model_transaction_policy(found)
    assert pb_utils.get_input_config_by_name(found, "y") == found["input"][1]
    assert pb_utils.get_output_config_by_name(found, "y") is None


@pytest.mark.parametrize(
    ("fields", "call", "text"),
    [
        ({"max_batch_size": 8}, lambda made: made.set_max_batch_size(4), "configuration specified max_batch_size 8"),
        ({"sequence_batching": {}}, lambda made: made.set_dynamic_batching(), "Configuration specified sequence_batching"),
        ({"model_transaction_policy": {"decoupled": True}}, lambda made: made.set_model_transaction_policy({"decoupled": False}), "already set"),
        ({}, lambda made: made.set_model_transaction_policy({"other": 1}), "contains property 'other'"),
        ({}, lambda made: made.add_output({"name": "x", "data_type": "TYPE_FP32"}), "is missing 'dims' property"),
        ({}, lambda made: made.add_output({"name": "x", "data_type": "TYPE_FP32", "dims": [1], "optional": True}), "unknown property 'optional'"),
        (
            {"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]},
            lambda made: made.add_input({"name": "x", "data_type": "TYPE_FP64", "dims": [1]}),
            "expects data_type TYPE_FP32 for input 'x'",
        ),
    ],
)
def test_what_contradicts_the_configuration(fields: dict[str, Any], call: Any, text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=text):
        call(config(**fields))

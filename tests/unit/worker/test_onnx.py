"""ONNX models against onnxruntime used directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_worker import load_here, request, served

from trivium.errors import InvalidRequest, ModelLoadError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper  # noqa: E402


def save(tmp_path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None) -> Path:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "1").mkdir(exist_ok=True)
    onnx.save(model, tmp_path / "1" / "model.onnx")
    return tmp_path / "1" / "model.onnx"


def value(name: str, datatype: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, datatype, shape)


def dense(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    return save(
        tmp_path,
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0)],
        [value("x", TensorProto.FLOAT, ["batch", 3])],
        [value("y", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.tobytes(), raw=True)],
    )


async def test_a_bare_file_is_completed_batched_and_agrees_with_onnxruntime(tmp_path: Path) -> None:
    path = dense(tmp_path)
    rows = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(path).run(["y"], {"x": rows})
    async with served(tmp_path, 'backend: "onnxruntime" instance_group { count: 2 kind: KIND_CPU }') as model:
        config = model.config
        assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (4, [3], [2])
        assert config.HasField("dynamic_batching")
        assert len(model.pool.instances) == 2
        assert len(model.pool.process_ids) == 1
        batch = await model.run(request(x=rows[:1]), request(x=rows[1:3]), request(x=rows[3:]), instance=1)
        np.testing.assert_allclose(np.concatenate([execution.arrays()["y"] for execution in batch]), expected, rtol=1e-5)
        (wrong,) = await model.run(request(x=rows[:, :2]))
        assert wrong.error is not None
        assert "Got: 2 Expected: 3" in wrong.error.message
        np.testing.assert_allclose((await model.arrays(x=rows))["y"], expected, rtol=1e-5)
        assert model.times is not None
        assert model.times.infer_ns > 0


async def test_scalars_strings_and_fixed_shapes(tmp_path: Path) -> None:
    save(
        tmp_path,
        [
            helper.make_node("Identity", ["text"], ["same"]),
            helper.make_node("Cast", ["flag"], ["number"], to=TensorProto.FLOAT16),
            helper.make_node("ReduceMax", ["number"], ["most"], keepdims=0),
        ],
        [value("text", TensorProto.STRING, [None, 2]), value("flag", TensorProto.BOOL, [4])],
        [value("same", TensorProto.STRING, [None, 2]), value("number", TensorProto.FLOAT16, [4]), value("most", TensorProto.FLOAT16, [])],
    )
    async with served(tmp_path, 'backend: "onnxruntime"') as model:
        config = model.config
        assert config.max_batch_size == 0
        assert [list(tensor.dims) for tensor in config.input] == [[-1, 2], [4]]
        assert [(list(tensor.dims), tensor.HasField("reshape")) for tensor in config.output] == [([-1, 2], False), ([4], False), ([1], False)]
        text = np.array([["a", "b"], ["Ä", ""]], np.object_)
        found = await model.arrays(text=text, flag=np.array([True, False, True, True]))
        assert found["same"].tolist() == [[b"a", b"b"], ["Ä".encode(), b""]]
        assert found["number"].dtype == np.float16
        assert found["most"].tolist() == [1.0]
        (wrong,) = await model.run(request(text=np.array([[b"\xff", b""]], np.object_), flag=np.zeros(4, np.bool_)))
        assert isinstance(wrong.error, InvalidRequest)
        (some,) = await model.run(request(text=text, flag=np.zeros(4, np.bool_), outputs=["number"]))
        assert list(some.arrays()) == ["number"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('input { name: "z" data_type: TYPE_FP32 dims: 3 }', "'z' of the configuration is not in the model's file"),
        ('max_batch_size: 2 input { name: "x" data_type: TYPE_FP64 dims: 3 }', "TYPE_FP64 in the configuration and TYPE_FP32"),
        (
            'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: 5 }',
            r"in the model's file, the configuration says \[-1, 5\]",
        ),
        ('parameters { key: "intra_op_thread_count" value { string_value: "two" } }', "must be an integer"),
        ('optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }', "needs an onnxruntime with OpenVINO"),
        ('model_operations { op_library_filename: "evil.so" }', "is not supported"),
    ],
)
def test_a_configuration_that_does_not_fit_is_a_load_error(tmp_path: Path, config: str, text: str) -> None:
    dense(tmp_path)
    with pytest.raises(ModelLoadError, match=text):
        load_here(tmp_path, f'backend: "onnxruntime" {config}')


def test_weights_outside_of_the_model_are_refused(tmp_path: Path) -> None:
    path = dense(tmp_path)
    model = onnx.load(path)
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match="onnxruntime can't load model.onnx"):
        load_here(tmp_path, 'backend: "onnxruntime"')


def completed(tmp_path: Path, config: str, **options: Any) -> dict[str, Any]:
    return json.loads(load_here(tmp_path, f'backend: "onnxruntime" {config}', **options).config_json)


def test_when_a_model_batches(tmp_path: Path) -> None:
    dense(tmp_path)
    whole = completed(tmp_path, 'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3] }')
    assert (whole["max_batch_size"], whole["output"][0]["dims"]) == (0, [-1, 2])
    assert completed(tmp_path, "", default_max_batch_size=0)["max_batch_size"] == 0
    one = completed(tmp_path, "", default_max_batch_size=1)
    assert (one["max_batch_size"], "dynamic_batching" in one) == (1, False)
    given = completed(tmp_path, "max_batch_size: 16 sequence_batching { }")
    assert (given["max_batch_size"], given["input"][0]["dims"], "dynamic_batching" in given) == (16, [3], False)
    nothing = completed(tmp_path, "", auto_complete=False)
    assert (nothing["max_batch_size"], nothing["input"]) == (0, [])

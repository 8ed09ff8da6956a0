"""TensorFlow models against tensorflow used directly. It is a large package: left out where it isn't installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_worker import load_here, request, served

from trivium.errors import ModelLoadError

tf = pytest.importorskip("tensorflow")


def save(tmp_path: Path, module: Any, *specs: Any) -> Path:
    path = tmp_path / "1" / "model.savedmodel"
    tf.saved_model.save(module, str(path), signatures=module.compute.get_concrete_function(*specs))
    return path


class Dense(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32))

    @tf.function
    def compute(self, rows: Any, text: Any) -> Any:
        return {"product": rows @ self.weight, "same": text, "half": tf.cast(rows, tf.bfloat16)}


ROWS = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
TEXT = np.array([[b"a"], [b""], [b"\xff"], [b"d"], [b"e"]], np.object_)


async def test_a_saved_model_needs_no_configuration(tmp_path: Path) -> None:
    module = Dense()
    save(tmp_path, module, tf.TensorSpec((None, 3), tf.float32, name="rows"), tf.TensorSpec((None, 1), tf.string, name="text"))
    async with served(tmp_path, 'backend: "tensorflow"') as model:
        config = model.config
        assert config.max_batch_size == 4
        assert {tensor.name: list(tensor.dims) for tensor in config.output} == {"product": [2], "same": [1], "half": [3]}
        first, second = await model.run(request(rows=ROWS[:2], text=TEXT[:2]), request(rows=ROWS[2:], text=TEXT[2:], outputs=["same", "product"]))
        found = np.concatenate([first.arrays_of("product"), second.arrays_of("product")])
        np.testing.assert_allclose(found, ROWS @ module.weight.numpy(), rtol=1e-5)
        assert second.arrays_of("same").tolist() == TEXT[2:].tolist()
        assert np.array_equal(first.arrays_of("half"), tf.bitcast(tf.cast(ROWS[:2], tf.bfloat16), tf.int16).numpy())


def test_a_frozen_graph_takes_its_tensors_from_the_configuration(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        source = tf.compat.v1.placeholder(tf.float32, (None, 3), name="rows")
        tf.multiply(source, 2.0, name="double")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    tensors = 'input { name: "rows" data_type: TYPE_FP32 dims: 3 } output { name: "double" data_type: TYPE_FP32 dims: 3 } max_batch_size: 8'
    model: Any = load_here(tmp_path, f'backend: "tensorflow" {tensors}')
    assert json.loads(model.config_json)["max_batch_size"] == 8
    from trivium.worker.tensorflow import TensorFlowSession

    session = TensorFlowSession(model._function, model._types, model_instance())
    assert np.array_equal(session.run({"rows": ROWS}, ["double"])["double"], ROWS * 2)
    with pytest.raises(ModelLoadError, match="the configuration must"):
        load_here(tmp_path, 'backend: "tensorflow"')


def model_instance() -> Any:
    from trivium.protocol.worker_messages import InstanceSetup

    return InstanceSetup(name="model_0", kind="CPU", device=0)


def test_models_that_reach_out_need_permission(tmp_path: Path) -> None:
    class Reader(tf.Module):
        @tf.function
        def compute(self, name: Any) -> Any:
            return {"content": tf.io.read_file(name)}

    save(tmp_path, Reader(), tf.TensorSpec((), tf.string, name="name"))
    with pytest.raises(ModelLoadError, match="uses the operation ReadFile, which needs --allow-python-models"):
        load_here(tmp_path, 'backend: "tensorflow"', allow_code=False)
    load_here(tmp_path, 'backend: "tensorflow"')


def test_what_can_not_be_loaded_says_why(tmp_path: Path) -> None:
    module = Dense()
    save(tmp_path, module, tf.TensorSpec((None, 3), tf.float32, name="rows"), tf.TensorSpec((None, 1), tf.string, name="text"))
    for name, text in (("TF_SIGNATURE_DEF", "has no signature 'other'"), ("TF_GRAPH_TAG", "tensorflow can't load model.savedmodel")):
        with pytest.raises(ModelLoadError, match=text):
            load_here(tmp_path, f'backend: "tensorflow" parameters {{ key: "{name}" value {{ string_value: "other" }} }}')

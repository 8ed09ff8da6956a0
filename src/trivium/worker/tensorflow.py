"""TensorFlow SavedModels (`model.savedmodel`) and frozen graphs (`model.graphdef`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

from trivium.errors import InternalError, ModelLoadError
from trivium.infer import DataType
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.completion import Port, complete, scalars
from trivium.worker.files import integer, model_file, parameters_of
from trivium.worker.link import Link
from trivium.worker.native import BrainFloats, NativeInstance
from trivium.worker.tensors import Array

_DATATYPES: Final = {
    tf.bool: DataType.BOOL,
    tf.uint8: DataType.UINT8,
    tf.uint16: DataType.UINT16,
    tf.uint32: DataType.UINT32,
    tf.uint64: DataType.UINT64,
    tf.int8: DataType.INT8,
    tf.int16: DataType.INT16,
    tf.int32: DataType.INT32,
    tf.int64: DataType.INT64,
    tf.float16: DataType.FP16,
    tf.float32: DataType.FP32,
    tf.float64: DataType.FP64,
    tf.string: DataType.BYTES,
    tf.bfloat16: DataType.BF16,
}
_CODE: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "ReadFile", "WriteFile", "LoadLibrary", "Send", "Recv"})
"""Operations that run other code or reach out of the model."""


def load(setup: Setup) -> TensorFlowModel:
    """Raises `ModelLoadError`."""
    config: dict[str, Any] = json.loads(setup.config_json)
    parameters = parameters_of(config, setup.settings)
    if count := integer(parameters, "TF_NUM_INTRA_THREADS", 0):
        tf.config.threading.set_intra_op_parallelism_threads(count)
    if count := integer(parameters, "TF_NUM_INTER_THREADS", 0):
        tf.config.threading.set_inter_op_parallelism_threads(count)
    path = model_file(setup, config, "model.savedmodel", "model.graphdef")
    function = _read_saved(path, parameters) if path.is_dir() else _read_graph(path, config)
    if not setup.allow_code:
        _refuse_code(function, path)
    return TensorFlowModel(setup, config, function)


class TensorFlowModel:
    """See `runtime.Model`. The instances share the function, which runs their batches side by side.

    Parameters, as in Triton: `TF_GRAPH_TAG`, `TF_SIGNATURE_DEF`, `TF_NUM_INTRA_THREADS`, `TF_NUM_INTER_THREADS`.
    """

    def __init__(self, setup: Setup, config: dict[str, Any], function: Any) -> None:
        self._function = function
        _args, keywords = function.structured_input_signature
        inputs = [_port(name, spec.dtype, spec.shape) for name, spec in keywords.items()]
        outputs = [_port(name, spec.dtype, spec.shape) for name, spec in function.structured_outputs.items()]
        self._types = {name: spec.dtype for name, spec in keywords.items()}
        complete(config, inputs, outputs, setup)
        self._config = config
        self._scalars = scalars([*inputs, *outputs])
        self.config_json = json.dumps(config)

    def create_instance(self, setup: InstanceSetup, link: Link) -> NativeInstance:
        return NativeInstance(TensorFlowSession(self._function, self._types, setup), self._config, link, self._scalars)


class TensorFlowSession:
    """See `native.Session`."""

    def __init__(self, function: Any, types: Mapping[str, Any], setup: InstanceSetup) -> None:
        self._function = function
        self._types = types
        self._device = f"/GPU:{setup.device}" if setup.kind == "GPU" else "/CPU:0"

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        with tf.device(self._device):
            found = self._function(**{name: _to_tensor(array, self._types.get(name)) for name, array in inputs.items()})
        missing = [name for name in outputs if name not in found]
        if missing:
            raise InternalError(f"the model gave no output '{missing[0]}'")
        return {name: _to_array(found[name]) for name in outputs}


def _to_tensor(array: Array, dtype: Any) -> Any:
    if isinstance(array, BrainFloats):
        return tf.bitcast(tf.constant(array.view(np.ndarray)), tf.bfloat16)
    return tf.constant(array, dtype=dtype)


def _to_array(tensor: Any) -> Array:
    if tensor.dtype == tf.bfloat16:
        return tf.bitcast(tensor, tf.uint16).numpy().view(BrainFloats)
    array = np.asarray(tensor.numpy())
    return array if array.dtype.kind != "S" else array.astype(np.object_)


def _port(name: str, dtype: Any, shape: Any) -> Port:
    datatype = _DATATYPES.get(dtype)
    if datatype is None:
        raise ModelLoadError(f"'{name}' of the model is {dtype.name}, which no tensor of a request can be")
    if shape.rank is None:
        raise ModelLoadError(f"'{name}' of the model has no known number of dimensions")
    return Port(name, datatype, tuple(-1 if dim is None else dim for dim in shape.as_list()))


# -- reading files ----------------------------------------------------------------------------------------------------------------


def _read_saved(path: Path, parameters: dict[str, str]) -> Any:
    tag = parameters.get("TF_GRAPH_TAG") or "serve"
    wanted = parameters.get("TF_SIGNATURE_DEF") or "serving_default"
    try:
        model = tf.saved_model.load(str(path), tags=[tag])
    except Exception as error:  # of many types
        raise ModelLoadError(f"tensorflow can't load {path.name}: {_text(error, path)}") from None
    if wanted not in model.signatures:
        raise ModelLoadError(f"{path.name} has no signature '{wanted}'; it has {sorted(model.signatures)}")
    function = model.signatures[wanted]
    function._trivium_model = model  # its variables live as long as it does
    return function


def _read_graph(path: Path, config: dict[str, Any]) -> Any:
    """A frozen graph, whose inputs and outputs only the configuration tells."""
    if not config.get("input") or not config.get("output"):
        raise ModelLoadError(f"{path.name} doesn't say what its inputs and outputs are: the configuration must")
    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(path.read_bytes())
    except Exception as error:
        raise ModelLoadError(f"tensorflow can't load {path.name}: {_text(error, path)}") from None
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    names = {kind: [tensor["name"] for tensor in config[kind]] for kind in ("input", "output")}
    try:
        feeds = {name: wrapped.graph.get_tensor_by_name(f"{name}:0") for name in names["input"]}
        fetches = {name: wrapped.graph.get_tensor_by_name(f"{name}:0") for name in names["output"]}
    except KeyError as error:
        raise ModelLoadError(f"{path.name}: {error.args[0]}") from None
    return _FrozenGraph(wrapped.prune(list(feeds.values()), fetches), feeds, fetches)


class _FrozenGraph:
    """With the face of a signature's function."""

    def __init__(self, function: Any, feeds: Mapping[str, Any], fetches: Mapping[str, Any]) -> None:
        self.graph = function.graph
        self.structured_input_signature = ((), {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in feeds.items()})
        self.structured_outputs = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in fetches.items()}
        self._function = function
        self._names = list(feeds)

    def __call__(self, **inputs: Any) -> Mapping[str, Any]:
        return self._function(*(inputs[name] for name in self._names))


def _refuse_code(function: Any, path: Path) -> None:
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    found = sorted({node.op for node in nodes} & _CODE)
    if found:
        raise ModelLoadError(f"{path.name} uses the operation {found[0]}, which needs --allow-python-models")


def _text(error: Exception, path: Path) -> str:
    text = str(error).replace(str(path), path.name).strip()
    return text.splitlines()[0] if text else type(error).__name__

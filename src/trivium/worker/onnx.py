"""ONNX models, by onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from trivium.errors import InvalidRequest, ModelLoadError
from trivium.infer import DataType
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.completion import Port, complete, scalars
from trivium.worker.files import boolean, integer, model_file, parameters_of
from trivium.worker.link import Link
from trivium.worker.native import NativeInstance
from trivium.worker.tensors import Array

_DATATYPES: Final = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
}
_PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider", "openvino": "OpenVINOExecutionProvider"}


def load(setup: Setup) -> OnnxModel:
    """Raises `ModelLoadError`."""
    config: dict[str, Any] = json.loads(setup.config_json)
    if config.get("model_operations", {}).get("op_library_filename"):
        raise ModelLoadError("model_operations.op_library_filename (native code in the repository) is not supported")
    path = model_file(setup, config, "model.onnx")
    if path.is_dir():
        path /= "model.onnx"
    return OnnxModel(setup, config, path)


class OnnxModel:
    """See `runtime.Model`. Instances on the same device share one session, which runs their batches side by side on its own threads."""

    def __init__(self, setup: Setup, config: dict[str, Any], path: Path) -> None:
        self._config = config
        self._path = path
        self._parameters = parameters_of(config, setup.settings)
        self._sessions = {device: self._create_session(*device) for device in sorted({(entry.kind, entry.device) for entry in setup.instances})}
        session = next(iter(self._sessions.values()))
        initializers = {entry.name for entry in session.get_overridable_initializers()}
        inputs = [_port(entry, is_optional=entry.name in initializers) for entry in session.get_inputs()]
        outputs = [_port(entry) for entry in session.get_outputs()]
        complete(config, inputs, outputs, setup)
        self._scalars = scalars([*inputs, *outputs])

    @cached_property
    def config_json(self) -> str:
        return json.dumps(self._config)

    def create_instance(self, setup: InstanceSetup, link: Link) -> NativeInstance:
        session = self._sessions[setup.kind, setup.device]
        strings = {tensor["name"] for tensor in self._config["input"] if tensor["data_type"] == "TYPE_STRING"}
        return NativeInstance(OnnxSession(session, strings), self._config, link, self._scalars)

    def _create_session(self, kind: str, device: int) -> onnxruntime.InferenceSession:
        options, providers = _options(self._config, self._parameters), _providers(self._config, kind, device)
        try:
            return onnxruntime.InferenceSession(self._path, options, providers=providers)
        except Exception as error:  # its exceptions have no common base
            raise ModelLoadError(f"onnxruntime can't load {self._path.name}: {_text(error, self._path)}") from None


class OnnxSession:
    """See `native.Session`."""

    def __init__(self, session: onnxruntime.InferenceSession, strings: set[str]) -> None:
        self._session = session
        self._strings = strings

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        feed = {name: _decoded(name, array) if name in self._strings else array for name, array in inputs.items()}
        found: Sequence[Any] = self._session.run(outputs, feed)
        return dict(zip(outputs, found, strict=True))


def _decoded(name: str, array: Array) -> Array:
    try:
        texts = [element.decode() for element in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"input '{name}' is not UTF-8 text") from None
    decoded = np.empty(len(texts), np.object_)
    decoded[:] = texts
    return decoded.reshape(array.shape)


def _port(entry: Any, *, is_optional: bool = False) -> Port:
    datatype = _DATATYPES.get(entry.type)
    if datatype is None:
        raise ModelLoadError(f"'{entry.name}' of the model's file is a {entry.type}, which no tensor of a request can be")
    return Port(entry.name, datatype, tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in entry.shape), is_optional)


def _options(config: dict[str, Any], parameters: dict[str, str]) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = integer(parameters, "intra_op_thread_count", 0)
    options.inter_op_num_threads = integer(parameters, "inter_op_thread_count", 0)
    if integer(parameters, "execution_mode", 0) == 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = boolean(parameters, "enable_mem_arena", default=True)
    options.enable_mem_pattern = boolean(parameters, "enable_mem_pattern", default=True)
    # Threads that spin between batches take the cores from the server and from other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level < 0:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    elif level == 1:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options


def _providers(config: dict[str, Any], kind: str, device: int) -> list[str | tuple[str, dict[str, Any]]]:
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    asked = [
        (accelerator["name"], accelerator.get("parameters", {}))
        for accelerator in accelerators.get("gpu_execution_accelerator" if kind == "GPU" else "cpu_execution_accelerator", [])
    ]
    if kind == "GPU":
        asked = [(name, {**options, "device_id": str(device)}) for name, options in [*asked, ("cuda", {})]]
    available = onnxruntime.get_available_providers()
    providers: list[str | tuple[str, dict[str, Any]]] = []
    for name, options in asked:
        provider = _PROVIDERS.get(name)
        if provider is None:
            raise ModelLoadError(f"execution accelerator '{name}' is not known; there are {', '.join(sorted(_PROVIDERS))}")
        if provider not in available:
            raise ModelLoadError(f"execution accelerator '{name}' needs an onnxruntime with {provider}; the one that is installed has {available}")
        providers.append((provider, dict(options)))
    return [*providers, "CPUExecutionProvider"]


def _text(error: Exception, path: Path) -> str:
    return str(error).replace(str(path), path.name)

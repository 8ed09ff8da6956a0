"""TensorRT engines (`model.plan`), through the `tensorrt` package (10 or later); torch holds the device's memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tensorrt  # pyright: ignore[reportMissingImports]
import torch

from trivium.errors import InternalError, InvalidRequest, ModelLoadError
from trivium.infer import DataType
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.completion import Port, complete, scalars
from trivium.worker.files import integer, model_file, parameters_of
from trivium.worker.link import Link
from trivium.worker.native import BrainFloats, NativeInstance
from trivium.worker.tensors import Array

_DATATYPES: Final = {
    "BOOL": (DataType.BOOL, torch.bool),
    "UINT8": (DataType.UINT8, torch.uint8),
    "INT8": (DataType.INT8, torch.int8),
    "INT32": (DataType.INT32, torch.int32),
    "INT64": (DataType.INT64, torch.int64),
    "HALF": (DataType.FP16, torch.float16),
    "FLOAT": (DataType.FP32, torch.float32),
    "BF16": (DataType.BF16, torch.bfloat16),
}


def load(setup: Setup) -> TensorRtModel:
    """Raises `ModelLoadError`. The file is chosen by the GPU's compute capability where `cc_model_filenames` has it."""
    config: dict[str, Any] = json.loads(setup.config_json)
    if any(entry.kind != "GPU" for entry in setup.instances):
        raise ModelLoadError("TensorRT engines run on a GPU: set instance_group { kind: KIND_GPU }")
    major, minor = torch.cuda.get_device_capability(setup.instances[0].device)
    name = config.get("cc_model_filenames", {}).get(f"{major}.{minor}", "")
    path = model_file(setup, {**config, **({"default_model_filename": name} if name else {})}, "model.plan")
    return TensorRtModel(setup, config, path)


class TensorRtModel:
    """See `runtime.Model`. Instances on one GPU share the engine; each has its own context and stream.

    Parameter `optimization_profile`: the profile's index, 0 if not given. Engines that carry host code are refused by TensorRT itself.
    """

    def __init__(self, setup: Setup, config: dict[str, Any], path: Path) -> None:
        self._profile = integer(parameters_of(config, setup.settings), "optimization_profile", 0)
        logger = tensorrt.Logger(tensorrt.Logger.WARNING)
        tensorrt.init_libnvinfer_plugins(logger, "")
        self._runtime = tensorrt.Runtime(logger)
        data = path.read_bytes()
        self._engines: dict[int, Any] = {}
        for device in sorted({entry.device for entry in setup.instances}):
            with torch.cuda.device(device):
                engine = self._runtime.deserialize_cuda_engine(data)
            if engine is None:
                raise ModelLoadError(f"TensorRT {tensorrt.__version__} can't load {path.name}: it was built by another version or for another GPU")
            self._engines[device] = engine
        engine = next(iter(self._engines.values()))
        if not 0 <= self._profile < engine.num_optimization_profiles:
            raise ModelLoadError(f"{path.name} has {engine.num_optimization_profiles} optimization profiles; optimization_profile is {self._profile}")
        inputs, outputs = _ports(engine, tensorrt.TensorIOMode.INPUT), _ports(engine, tensorrt.TensorIOMode.OUTPUT)
        complete(config, inputs, outputs, setup)
        self._config = config
        self._scalars = scalars([*inputs, *outputs])
        self.config_json = json.dumps(config)

    def create_instance(self, setup: InstanceSetup, link: Link) -> NativeInstance:
        session = TensorRtSession(self._engines[setup.device], setup.device, self._profile)
        return NativeInstance(session, self._config, link, self._scalars)


def _ports(engine: Any, mode: Any) -> list[Port]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return [_port(engine, name) for name in names if engine.get_tensor_mode(name) == mode]


def _port(engine: Any, name: str) -> Port:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise ModelLoadError(f"'{name}' of the engine is {kind}, which no tensor of a request can be")
    return Port(name, _DATATYPES[kind][0], tuple(engine.get_tensor_shape(name)))


class TensorRtSession:
    """See `native.Session`."""

    _profile_lock = threading.Lock()

    def __init__(self, engine: Any, device: int, profile: int) -> None:
        self._engine = engine
        self._device = torch.device("cuda", device)
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            self._context = engine.create_execution_context()
            if self._context is None:
                raise ModelLoadError("there is no memory on the GPU for another instance of the engine")
            if profile:
                with self._profile_lock:
                    self._context.set_optimization_profile_async(profile, self._stream.cuda_stream)
                    self._stream.synchronize()
        modes = {engine.get_tensor_name(index): engine.get_tensor_mode(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)}
        self._outputs = [name for name, mode in modes.items() if mode == tensorrt.TensorIOMode.OUTPUT]
        self._types = {name: _DATATYPES[engine.get_tensor_dtype(name).name][1] for name in modes}

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        context = self._context
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            held: dict[str, torch.Tensor] = {}
            for name, array in inputs.items():
                tensor = _to_tensor(array).to(self._device, non_blocking=True).contiguous()
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise InvalidRequest(f"input '{name}' of shape {list(tensor.shape)} is outside of the engine's optimization profile")
                context.set_tensor_address(name, tensor.data_ptr())
                held[name] = tensor
            unknown = context.infer_shapes()
            if unknown:
                raise InvalidRequest(f"the engine can't tell its outputs' shapes without {unknown}")
            for name in self._outputs:
                shape = tuple(context.get_tensor_shape(name))
                if any(dim < 0 for dim in shape):
                    raise InternalError(f"output '{name}' has a shape that depends on the data, which is not supported")
                held[name] = torch.empty(shape, dtype=self._types[name], device=self._device)
                context.set_tensor_address(name, held[name].data_ptr())
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise InternalError("TensorRT could not run the batch")
            found = {name: held[name].to("cpu", non_blocking=False) for name in outputs}
        return {name: _to_array(tensor) for name, tensor in found.items()}


def _to_tensor(array: Array) -> torch.Tensor:
    if isinstance(array, BrainFloats):
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_array(tensor: torch.Tensor) -> Array:
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16").view(BrainFloats)
    return tensor.numpy()

"""PyTorch models: TorchScript (`model.pt`), `torch.export` archives (`model.pt2`) and AOTInductor packages (`model.pt2` as well)."""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.export.passes import move_to_device_pass
from torch.jit._fuser import optimized_execution

from trivium.errors import InternalError, InvalidRequest, ModelLoadError
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.completion import Port, complete, scalars
from trivium.worker.files import boolean, integer, model_file, parameters_of
from trivium.worker.link import Link
from trivium.worker.native import BrainFloats, NativeInstance
from trivium.worker.tensors import Array
from trivium.worker.torch_export import exported_ports, is_compiled, load_exported, num_positional

logger = logging.getLogger(__name__)

_INDEXED: Final = re.compile(r".*__(\d+)|(?:ARGS|RESULT)\[(\d+)\]")


def load(setup: Setup) -> TorchModel:
    """Raises `ModelLoadError`."""
    config: dict[str, Any] = json.loads(setup.config_json)
    names = ("model.pt2", "model.pt") if config.get("platform") == "torch_aoti" else ("model.pt", "model.pt2")
    path = model_file(setup, config, *names)
    if not zipfile.is_zipfile(path):
        raise ModelLoadError(f"{path.name} is no TorchScript or torch.export archive")
    parameters = parameters_of(config, setup.settings)
    _set_threads(parameters)
    return TorchModel(setup, config, path, parameters)


def _set_threads(parameters: dict[str, str]) -> None:
    if count := integer(parameters, "INTRA_OP_THREAD_COUNT", 0):
        torch.set_num_threads(count)
    if count := integer(parameters, "INTER_OP_THREAD_COUNT", 0):
        torch.set_num_interop_threads(count)


class TorchModel:
    """See `runtime.Model`. Instances on one device share the module."""

    def __init__(self, setup: Setup, config: dict[str, Any], path: Path, parameters: dict[str, str]) -> None:
        self._config = config
        self._parameters = parameters
        devices = sorted({(entry.kind, entry.device) for entry in setup.instances})
        self._modules: dict[tuple[str, int], Callable[..., Any]] = {}
        self._argument_names: list[str] = []
        self._num_positional = 0
        """How many of them an exported program takes by position only."""
        self._scalars: frozenset[str] = frozenset()
        for kind, index in devices:
            device = torch.device("cuda", index) if kind == "GPU" else torch.device("cpu")
            self._modules[kind, index] = self._load(path, device, setup)
        if not config.get("input") or not config.get("output"):
            raise ModelLoadError(f"{path.name} doesn't say what its inputs and outputs are: the configuration must")
        self.config_json = json.dumps(config)

    def create_instance(self, setup: InstanceSetup, link: Link) -> NativeInstance:
        device = torch.device("cuda", setup.device) if setup.kind == "GPU" else torch.device("cpu")
        module = self._modules[setup.kind, setup.device]
        binding = _bind([tensor["name"] for tensor in self._config["input"]], self._argument_names, self._num_positional)
        return NativeInstance(TorchSession(module, self._config, binding, device, self._parameters), self._config, link, self._scalars)

    def _load(self, path: Path, device: torch.device, setup: Setup) -> Callable[..., Any]:
        if path.suffix != ".pt2":
            return self._load_script(path, device)
        if is_compiled(path):
            if not setup.allow_code:
                raise ModelLoadError(f"{path.name} holds compiled code of the repository, which needs --allow-python-models")
            return torch._inductor.aoti_load_package(str(path))
        program = load_exported(path)
        inputs, outputs = exported_ports(program)
        self._argument_names = [port.name for port in inputs]
        self._num_positional = num_positional(program)
        inputs, outputs = _renamed(self._config, inputs, outputs)
        complete(self._config, inputs, outputs, setup)
        self._scalars = scalars([*inputs, *outputs])
        if device.type == "cuda":
            program = move_to_device_pass(program, device)
        return program.module()

    def _load_script(self, path: Path, device: torch.device) -> torch.jit.ScriptModule:
        try:
            module = torch.jit.load(path, map_location=device)
        except (RuntimeError, ValueError) as error:
            text = str(error).replace(str(path), path.name).strip()
            raise ModelLoadError(f"torch can't load {path.name}: {text.splitlines()[0] if text else type(error).__name__}") from None
        module.eval()
        self._argument_names = [argument.name for argument in module.forward.schema.arguments[1:]]
        return module


def _renamed(config: dict[str, Any], inputs: list[Port], outputs: list[Port]) -> tuple[list[Port], list[Port]]:
    """With the names that the configuration gives them, where it has names by position."""
    renamed: list[list[Port]] = []
    for kind, ports in (("input", inputs), ("output", outputs)):
        names = [tensor["name"] for tensor in config.get(kind, [])]
        by_position = {position: name for order, name in enumerate(names) if (position := _position(name, order, kind)) is not None}
        renamed.append([replace(port, name=by_position.get(index, port.name)) for index, port in enumerate(ports)])
    return renamed[0], renamed[1]


def _position(name: str, order: int, kind: str) -> int | None:
    match = _INDEXED.fullmatch(name)
    if match is not None:
        return int(match[1] or match[2])
    return order if kind == "output" else None


class TorchSession:
    """See `native.Session`. Inputs go by name to `forward`, or by position where they are called `INPUT__0` or `ARGS[0]`; outputs are a tensor,
    a sequence in the order of the configuration or of `OUTPUT__0`, or a dictionary by name."""

    def __init__(
        self,
        module: Callable[..., Any],
        config: dict[str, Any],
        binding: tuple[dict[str, str], list[str]],
        device: torch.device,
        parameters: dict[str, str],
    ) -> None:
        """`binding`: as `_bind` gives it."""
        self._module = module
        self._device = device
        self._by_name, self._by_position = binding
        self._outputs = {tensor["name"]: _position(tensor["name"], index, "output") for index, tensor in enumerate(config["output"])}
        self._is_inference = boolean(parameters, "INFERENCE_MODE", default=True)
        self._optimizes = not boolean(parameters, "DISABLE_OPTIMIZED_EXECUTION", default=False)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        tensors = {name: self._to_tensor(name, array) for name, array in inputs.items()}
        positional = [tensors[name] for name in self._by_position if name in tensors]
        named = {argument: tensors[name] for name, argument in self._by_name.items() if name in tensors}
        guard = torch.inference_mode() if self._is_inference else torch.no_grad()
        with guard, optimized_execution(self._optimizes):
            found = self._module(*positional, **named)
        return {name: _to_array(name, self._pick(found, name)) for name in outputs}

    def _to_tensor(self, name: str, array: Array) -> torch.Tensor:
        if array.dtype == np.object_:
            raise InvalidRequest(f"input '{name}': TorchScript models take no BYTES")
        if isinstance(array, BrainFloats):
            return torch.from_numpy(array.view(np.ndarray).view(np.int16)).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(array).to(self._device)

    def _pick(self, found: Any, name: str) -> torch.Tensor:
        if isinstance(found, Mapping):
            if name not in found:
                raise InternalError(f"the model's dictionary has no '{name}'; it has {sorted(map(str, found))}")
            found = found[name]
        elif isinstance(found, tuple | list):
            position = self._outputs[name]
            if position is None or position >= len(found):
                raise InternalError(f"the model gave {len(found)} outputs, '{name}' is not among them")
            found = found[position]
        if not isinstance(found, torch.Tensor):
            raise InternalError(f"output '{name}' of the model is a {type(found).__name__}, not a tensor")
        return found


def _bind(names: Sequence[str], arguments: Sequence[str], num_positional: int = 0) -> tuple[dict[str, str], list[str]]:
    """Inputs that are passed by argument name, and those that are passed by position, in that order. Raises `ModelLoadError`."""
    if all(name in arguments for name in names):
        positional = arguments[:num_positional]
        return {name: name for name in names if name not in positional}, [name for name in positional if name in names]
    keywords = {name: match[1] for name in names if (match := re.fullmatch(r"KWARGS\[(\w+)\]", name))}
    positions = [(position, name) for name in names if name not in keywords and (position := _position(name, 0, "input")) is not None]
    if len(positions) + len(keywords) != len(names) or sorted(position for position, _ in positions) != list(range(len(positions))):
        raise ModelLoadError(
            f"inputs {list(names)} are neither the names of the model's arguments {list(arguments)} nor all of the form <name>__<index> from 0 on"
        )
    return keywords, [name for _, name in sorted(positions)]


def _to_array(name: str, tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16).view(BrainFloats)
    try:
        return tensor.numpy()
    except TypeError:
        raise InternalError(f"output '{name}' is {tensor.dtype}, which no tensor of a response can be") from None

"""Filling in a configuration from what a model's file says of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trivium.errors import ModelLoadError
from trivium.infer import DataType
from trivium.protocol.worker_messages import Setup
from trivium.worker.native import config_name

Json = dict[str, Any]
SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


@dataclass(frozen=True)
class Port:
    """An input or output of the model's file; `shape` as the library has it, -1 where it is open."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    is_optional: bool = False


def complete(config: Json, inputs: Sequence[Port], outputs: Sequence[Port], setup: Setup) -> None:
    """Add to `config` what it lacks; what it says must agree. Raises `ModelLoadError`. A scalar is one element for clients (`dims: [1]`).

    A model batches if it can, its first dimensions are all open, and the configuration doesn't show otherwise: a `max_batch_size`, or tensors
    with as many dimensions as the file's.
    """
    can_batch = all(port.shape and port.shape[0] == -1 for port in (*inputs, *outputs))
    if config.get("max_batch_size", 0) > 0:
        if not can_batch:
            fixed = next(port for port in (*inputs, *outputs) if not port.shape or port.shape[0] != -1)
            raise ModelLoadError(
                f"model '{setup.model}' has max_batch_size {config['max_batch_size']}, but the first dimension of '{fixed.name}' "
                f"(shape {list(fixed.shape)}) is no batch dimension"
            )
    elif setup.auto_complete and can_batch and setup.default_max_batch_size > 0 and not _shows_whole_shapes(config, (*inputs, *outputs)):
        config["max_batch_size"] = setup.default_max_batch_size
        if setup.default_max_batch_size > 1 and not any(name in config for name in SCHEDULERS):
            config["dynamic_batching"] = {}
    batches = config.get("max_batch_size", 0) > 0
    for kind, ports in (("input", inputs), ("output", outputs)):
        _complete_tensors(config, kind, ports, batches=batches, adds=setup.auto_complete)


def _shows_whole_shapes(config: Json, ports: Sequence[Port]) -> bool:
    by_name = {port.name: port for port in ports}
    given = [tensor for kind in ("input", "output") for tensor in config.get(kind, [])]
    return any(tensor.get("dims") and len(tensor["dims"]) == len(by_name[tensor["name"]].shape) for tensor in given if tensor["name"] in by_name)


def _complete_tensors(config: Json, kind: str, ports: Sequence[Port], *, batches: bool, adds: bool) -> None:
    tensors: list[Json] = config.setdefault(kind, [])
    by_name = {port.name: port for port in ports}
    derived = {name for entry in config.get("batch_input", []) for name in entry["target_name"]}
    derived |= _controls(config) if kind == "input" else set()
    states = {state[f"{kind}_name"] for state in config.get("sequence_batching", {}).get("state", [])}
    for tensor in tensors:
        port = by_name.get(tensor["name"])
        if port is None:
            raise ModelLoadError(f"{kind} '{tensor['name']}' of the configuration is not in the model's file, which has {sorted(by_name)}")
        _merge(tensor, port, kind, batches=batches)
    if not adds:
        return
    known = {tensor["name"] for tensor in tensors} | derived | states
    # A configuration that names some outputs wants only those; inputs are all needed.
    if kind == "input" or not tensors:
        for port in ports:
            if port.name not in known:
                tensor: Json = {"name": port.name, **({"optional": True} if port.is_optional else {})}
                _merge(tensor, port, kind, batches=batches)
                tensors.append(tensor)


def _controls(config: Json) -> set[str]:
    return {control["name"] for control in config.get("sequence_batching", {}).get("control_input", [])}


def _merge(tensor: Json, port: Port, kind: str, *, batches: bool) -> None:
    datatype = config_name(port.datatype)
    if tensor.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        tensor["data_type"] = datatype
    elif tensor["data_type"] != datatype:
        raise ModelLoadError(f"{kind} '{port.name}' is {tensor['data_type']} in the configuration and {datatype} in the model's file")
    dims = [*port.shape[1:]] if batches else [*port.shape]
    if not tensor.get("dims"):
        tensor["dims"] = dims or [1]
        if batches and not dims:
            tensor["reshape"] = {"shape": []}
        return
    if tensor.get("allow_ragged_batch") or (not port.shape and tensor["dims"] == [1]):
        return
    given = [int(dim) for dim in (tensor["reshape"].get("shape", []) if "reshape" in tensor else tensor["dims"])]
    if len(given) != len(dims) or any(-1 not in (ours, theirs) and ours != theirs for ours, theirs in zip(given, dims, strict=True)):
        whole = f"[-1, {', '.join(map(str, given))}]" if batches else str(given)
        raise ModelLoadError(
            f"{kind} '{port.name}' has shape {list(port.shape)} in the model's file, the configuration says {whole}"
            + (" (with the batch dimension, since max_batch_size is not 0)" if batches else "")
        )


def scalars(ports: Sequence[Port]) -> frozenset[str]:
    """Names of those without dimensions."""
    return frozenset(port.name for port in ports if not port.shape)

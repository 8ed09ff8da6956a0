"""Checks of `ensemble_scheduling`: first of an ensemble on its own, then of its tensors against the models it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trivium.protocol.model_config import DataType, ModelConfig, ModelInput, ModelOutput
from trivium.repository.backend_names import ENSEMBLE
from trivium.repository.config_text import Field

Found = Iterator[tuple[str, Field]]

_STEP: Final = ("ensemble_scheduling", "step")


def check_ensemble(config: ModelConfig) -> Found:
    """Messages and fields: what can be said without the other models."""
    name = config.name
    if not config.HasField("ensemble_scheduling"):
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}", ("platform",)
        return
    if config.platform != ENSEMBLE:
        yield f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE}", ("ensemble_scheduling",)
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'", ("instance_group",)
    if config.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{name}'", ("optimization",)
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'", ("model_warmup",)
    if not config.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{name}'", ("ensemble_scheduling",)
        return
    if not config.input or not config.output:
        yield f"ensemble '{name}' must specify its inputs and outputs: they can't be derived", ()
    yield from _check_steps(config)
    yield from _check_flow(config)


def _check_steps(config: ModelConfig) -> Found:
    written: set[str] = {tensor.name for tensor in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        where: Field = (*_STEP, index)
        if not step.model_name:
            yield f"must specify 'model_name' in step {index} of ensemble '{config.name}'", where
        if not step.input_map:
            yield f"must specify 'input_map' in step {index} of ensemble '{config.name}'", where
        if not step.output_map:
            yield f"must specify 'output_map' in step {index} of ensemble '{config.name}'", where
        if step.model_version < -1:
            yield f"model_version must be -1 or a version in step {index} of ensemble '{config.name}'", where
        for tensor in step.output_map.values():
            if tensor in written:
                yield f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{config.name}' step {index}", where
            written.add(tensor)


def _check_flow(config: ModelConfig) -> Found:
    """Every tensor is written before it is read, and read by somebody."""
    name, steps = config.name, config.ensemble_scheduling.step
    ready = {tensor.name for tensor in config.input}
    waiting = list(range(len(steps)))
    while runnable := [index for index in waiting if ready.issuperset(steps[index].input_map.values())]:
        waiting = [index for index in waiting if index not in runnable]
        for index in runnable:
            ready.update(steps[index].output_map.values())
    read = {tensor for step in steps for tensor in step.input_map.values()}
    outputs = {tensor.name for tensor in config.output}
    for index, tensor in enumerate(config.input):
        if tensor.name not in read:
            yield f"ensemble input '{tensor.name}' for ensemble {name}' is not used", ("input", index)
    for index, tensor in enumerate(config.output):
        if tensor.name not in ready:
            yield f"output '{tensor.name}' for ensemble '{name}' is not written{_missing(config, waiting, ready)}", ("output", index)
    for index, step in enumerate(steps):
        for tensor in sorted(step.output_map.values()):
            if tensor not in read and tensor not in outputs:
                yield f"ensemble tensor '{tensor}' is unused in ensemble '{name}'", (*_STEP, index)
    if waiting and outputs <= ready:
        lacking = sorted(set(steps[waiting[0]].input_map.values()) - ready)
        yield f"ensemble tensor '{lacking[0]}' is not written in ensemble '{name}'", (*_STEP, waiting[0])


def _missing(config: ModelConfig, waiting: list[int], ready: set[str]) -> str:
    steps = config.ensemble_scheduling.step
    written = {tensor for step in steps for tensor in step.output_map.values()}
    lacking = sorted({tensor for index in waiting for tensor in steps[index].input_map.values()} - ready)
    source = next((tensor for tensor in lacking if tensor not in written), lacking[0] if lacking else "")
    return f": at least one of its depending tensors, '{source}', is not connected" if source else ""


def components(config: ModelConfig) -> dict[str, set[int]]:
    """Models an ensemble is made of, and the versions it asks for (-1: the latest), in the order of the steps."""
    found: dict[str, set[int]] = {}
    for step in config.ensemble_scheduling.step:
        found.setdefault(step.model_name, set()).add(step.model_version or -1)
    return found


@dataclass(frozen=True)
class _Seen:
    """What a model, or the ensemble itself, says of a tensor."""

    data_type: int
    shape: tuple[int, ...]
    source: str

    @classmethod
    def of(cls, tensor: ModelInput | ModelOutput, config: ModelConfig, source: str) -> _Seen:
        return cls(tensor.data_type, (-1, *tensor.dims) if config.max_batch_size > 0 else tuple(tensor.dims), source)


def check_components(config: ModelConfig, models: Mapping[str, ModelConfig]) -> Found:
    """Types and shapes of the ensemble's tensors are those of the models it is made of. `models`: complete configurations by name."""
    name = config.name
    seen = {tensor.name: _Seen.of(tensor, config, f"ensemble '{name}'") for tensor in (*config.input, *config.output)}
    for index, step in enumerate(config.ensemble_scheduling.step):
        model = models.get(step.model_name)
        if model is None:
            continue
        where: Field = (*_STEP, index)
        if config.max_batch_size > model.max_batch_size:
            yield (
                f"ensemble {name} allows maximum batch size {config.max_batch_size}, but it contains model {model.name} "
                f"which only allows maximum batch size to be {model.max_batch_size}",
                where,
            )
        yield from ((message, where) for message in _check_mapping(name, "input", step.input_map, model, seen))
        yield from ((message, where) for message in _check_mapping(name, "output", step.output_map, model, seen))
        for tensor in model.input:
            if not tensor.optional and tensor.name not in step.input_map:
                yield f"in ensemble {name}, input {tensor.name} in model {model.name} is not mapped to any ensemble tensors", where


def _check_mapping(ensemble: str, kind: str, mapping: Mapping[str, str], model: ModelConfig, seen: dict[str, _Seen]) -> Iterator[str]:
    known = {tensor.name: tensor for tensor in (model.input if kind == "input" else model.output)}
    for own, outer in sorted(mapping.items()):
        tensor = known.get(own)
        if tensor is None:
            yield f"in ensemble {ensemble}, ensemble tensor {outer} is mapping to non-existing {kind} {own} in model {model.name}"
            continue
        mine = _Seen.of(tensor, model, f"model {model.name}")
        other = seen.setdefault(outer, mine)
        difference = _difference(other, mine)
        if difference:
            yield f"in ensemble {ensemble}, ensemble tensor {outer}: inconsistent {difference}"


def _difference(one: _Seen, other: _Seen) -> str:
    if one.data_type != other.data_type:
        names = DataType.Name(one.data_type), DataType.Name(other.data_type)
        return f"data type: {names[0]} is inferred from {one.source} while {names[1]} is inferred from {other.source}"
    if len(one.shape) == len(other.shape) and all(a == b or -1 in (a, b) for a, b in zip(one.shape, other.shape, strict=True)):
        return ""
    texts = ["[" + ",".join(map(str, shape)) + "]" for shape in (one.shape, other.shape)]
    return f"shape: {texts[0]} is inferred from {one.source} while {texts[1]} is inferred from {other.source}"

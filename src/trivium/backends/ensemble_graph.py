"""The steps of an ensemble and the tensors between them. Whether the models fit together is the repository's to check.

A tensor of the ensemble is one of its inputs or what a step's `output_map` calls so; a step takes tensors by its `input_map`. Steps run as soon as
what they take is there, in whatever order the configuration has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Step:
    index: int
    model: str
    version: str
    """"" for the model's default."""
    inputs: Mapping[str, str]
    """Input of the model to tensor of the ensemble."""
    outputs: Mapping[str, str]
    """Output of the model to tensor of the ensemble."""

    def __str__(self) -> str:
        return f"step {self.index} (model '{self.model}')"


@dataclass(frozen=True, kw_only=True)
class EnsembleGraph:
    steps: tuple[Step, ...]
    producers: Mapping[str, Step | None]
    """Where each tensor comes from; None: from the request."""
    outputs: tuple[str, ...]

    def steps_for(self, outputs: Iterable[str]) -> frozenset[int]:
        """Indices of the steps without which `outputs` can't be."""
        needed: set[int] = set()
        open_tensors = list(outputs)
        while open_tensors:
            step = self.producers[open_tensors.pop()]
            if step is not None and step.index not in needed:
                needed.add(step.index)
                open_tensors.extend(step.inputs.values())
        return frozenset(needed)


def component_models(config: ModelConfig) -> list[tuple[str, str]]:
    """(name, version) of the models that an ensemble's steps call, each once, in order of the steps; version "" is the default one."""
    return list(dict.fromkeys((step.model_name, _version(step.model_version)) for step in config.ensemble_scheduling.step))


def ensemble_graph(config: ModelConfig) -> EnsembleGraph:
    """Raises `ModelLoadError` for steps that can't work whatever their models are."""
    name = config.name
    steps = tuple(
        Step(
            index=index,
            model=step.model_name,
            version=_version(step.model_version),
            inputs=MappingProxyType(dict(step.input_map)),
            outputs=MappingProxyType(dict(step.output_map)),
        )
        for index, step in enumerate(config.ensemble_scheduling.step)
    )
    if not steps:
        raise ModelLoadError(f"ensemble '{name}' has no step")
    producers: dict[str, Step | None] = {tensor.name: None for tensor in config.input}
    for step in steps:
        if not step.model:
            raise ModelLoadError(f"in ensemble '{name}', step {step.index} names no model")
        if not step.outputs:
            raise ModelLoadError(f"in ensemble '{name}', {step} has an empty output_map")
        for output, tensor in step.outputs.items():
            if tensor in producers:
                first = producers[tensor]
                raise ModelLoadError(f"in ensemble '{name}', tensor '{tensor}' is output '{output}' of {step}, but also {_origin(first)}")
            producers[tensor] = step
    for step in steps:
        for input_name, tensor in step.inputs.items():
            if tensor not in producers:
                raise ModelLoadError(f"in ensemble '{name}', input '{input_name}' of {step} takes tensor '{tensor}', which nothing gives")
    for output in config.output:
        if output.name not in producers:
            raise ModelLoadError(f"in ensemble '{name}', no step gives output '{output.name}'")
    _check_acyclic(name, steps, [tensor.name for tensor in config.input])
    return EnsembleGraph(steps=steps, producers=MappingProxyType(producers), outputs=tuple(output.name for output in config.output))


def _check_acyclic(name: str, steps: tuple[Step, ...], inputs: Iterable[str]) -> None:
    known, waiting = set(inputs), list(steps)
    while runnable := [step for step in waiting if known.issuperset(step.inputs.values())]:
        known.update(tensor for step in runnable for tensor in step.outputs.values())
        waiting = [step for step in waiting if step not in runnable]
    if waiting:
        raise ModelLoadError(f"in ensemble '{name}', steps wait for each other: {', '.join(map(str, waiting))}")


def _origin(step: Step | None) -> str:
    return "an input of the ensemble" if step is None else f"an output of {step}"


def _version(model_version: int) -> str:
    return "" if model_version < 0 else str(model_version)

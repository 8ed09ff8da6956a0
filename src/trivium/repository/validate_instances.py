"""Checks of `instance_group`, before defaults are filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trivium.protocol.model_config import ModelConfig, ModelInstanceGroup
from trivium.repository.config_text import Field

MAX_INSTANCES: Final = 1024


def check_instances(config: ModelConfig) -> Iterator[tuple[str, Field]]:
    """Messages and fields. Whether the GPUs exist depends on the machine and is checked where the model is loaded."""
    if config.HasField("ensemble_scheduling"):
        return
    if sum(group.count for group in config.instance_group) > MAX_INSTANCES:
        yield f"model {config.name} has more than {MAX_INSTANCES} instances", ("instance_group",)
    for index, group in enumerate(config.instance_group):
        where: Field = ("instance_group", index)
        what = f"instance group {group.name or f'{config.name}_{index}'} of model {config.name}"
        if group.gpus and group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            kind = ModelInstanceGroup.Kind.Name(group.kind)
            yield f"{what} has kind {kind} but specifies one or more GPUs", (*where, "gpus")
        if group.profile and config.platform != "tensorrt_plan":
            message = f"{what} and platform {config.platform}specifies profile field which is only supported for TensorRT models"
            yield message, (*where, "profile")
        for profile in group.profile:
            if not profile.isdecimal():
                yield (
                    f"{what} and platform {config.platform} specifies invalid profile {profile}. "
                    "The field should contain the string representation of a non-negative integer.",
                    (*where, "profile"),
                )
        if group.count < 0:
            yield f"{what} has a negative count", (*where, "count")


def check_gpus(config: ModelConfig, gpus: tuple[int, ...]) -> Iterator[tuple[str, Field]]:
    """For a configuration with its defaults: the GPUs it names are here. `gpus`: those this machine has."""
    for index, group in enumerate(config.instance_group):
        if group.kind != ModelInstanceGroup.KIND_GPU:
            continue
        what, where = f"instance group {group.name} of model {config.name}", ("instance_group", index)
        if not gpus:
            yield f"{what} has kind KIND_GPU but no GPUs are available", where
        for gpu in group.gpus:
            if gpus and gpu not in gpus:
                yield f"{what} specifies invalid or unsupported gpu id {gpu}. GPUs are: {', '.join(map(str, gpus))}", where

"""Which processes a model needs and which instances each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelConfig, ModelInstanceGroup

OWN_PROCESS: Final = ("python",)
"""Back ends whose instances can't share a process; those of the others are threads of one, which share weights where the library can."""
DEFAULT_LIMIT_S: Final = 600.0
LIMIT_PARAMETER: Final = "execution_timeout_s"
ENVIRONMENT_PARAMETER: Final = "EXECUTION_ENV_PATH"
MAX_INSTANCES: Final = 256


@dataclass(frozen=True)
class InstancePlan:
    """`kind` is CPU, GPU or MODEL (the model places itself); `device` the GPU's index."""

    name: str
    kind: str
    device: int


def plan_processes(config: ModelConfig) -> list[list[InstancePlan]]:
    """The instances of each process. Raises `ModelLoadError` for more than `MAX_INSTANCES`."""
    plans = [plan for index, group in enumerate(config.instance_group) for plan in _plan_group(group, f"{config.name}_{index}")]
    if not plans:
        plans = [InstancePlan(f"{config.name}_0", "CPU", 0)]
    if len(plans) > MAX_INSTANCES:
        raise ModelLoadError(f"model '{config.name}' asks for {len(plans)} instances; at most {MAX_INSTANCES} are possible")
    return [[plan] for plan in plans] if config.backend in OWN_PROCESS else [plans]


def _plan_group(group: ModelInstanceGroup, default_name: str) -> Sequence[InstancePlan]:
    if group.passive:
        return []  # it would never get a request
    name = group.name or default_name
    devices = [("MODEL" if group.kind == ModelInstanceGroup.KIND_MODEL else "CPU", 0)]
    if group.kind == ModelInstanceGroup.KIND_GPU and group.gpus:
        devices = [("GPU", gpu) for gpu in group.gpus]
    count = max(1, group.count)
    return [
        InstancePlan(f"{name}_{index}" if len(devices) == 1 else f"{name}_{index}_gpu{device}", kind, device)
        for kind, device in devices
        for index in range(count)
    ]


def execution_limit_s(config: ModelConfig) -> float:
    """Seconds after which one batch counts as hung; 0: never. The parameter `execution_timeout_s` of the configuration, or ten minutes.

    Raises `ModelLoadError` for what isn't a number.
    """
    if LIMIT_PARAMETER not in config.parameters:
        return DEFAULT_LIMIT_S
    text = config.parameters[LIMIT_PARAMETER].string_value
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = -1.0
    if not 0 <= limit_s < 10**9:
        raise ModelLoadError(f"parameter '{LIMIT_PARAMETER}' must be a number of seconds, not {text!r}")
    return limit_s


def interpreter_of(config: ModelConfig, model_path: Path) -> Path | None:
    """Python of the environment that a `python` model asks for with the parameter `EXECUTION_ENV_PATH`; None: the server's own.

    It is the folder of a virtual or conda environment; `$$TRITON_MODEL_DIRECTORY` in it stands for the model's folder. Raises
    `ModelLoadError` for anything else, archives as well.
    """
    if config.backend != "python" or ENVIRONMENT_PARAMETER not in config.parameters:
        return None
    text = config.parameters[ENVIRONMENT_PARAMETER].string_value
    folder = Path(text.replace("$$TRITON_MODEL_DIRECTORY", str(model_path.resolve())))
    interpreter = folder / "bin" / "python"
    if folder.is_file():
        raise ModelLoadError(f"parameter {ENVIRONMENT_PARAMETER} names an archive: unpack it and name the folder")
    if not interpreter.exists():
        raise ModelLoadError(f"parameter {ENVIRONMENT_PARAMETER}: {text!r} is no Python environment (it has no bin/python)")
    return interpreter

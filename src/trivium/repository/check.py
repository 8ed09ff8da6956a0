"""What is wrong with a repository, told without loading a model or running anything of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import InvalidRequest
from trivium.protocol.model_config import ModelConfig
from trivium.repository.backend_names import LLM_BACKENDS
from trivium.repository.dependencies import find_cycle, needs
from trivium.repository.file_kinds import wrong_kind
from trivium.repository.layout import ModelFolder, check_unique, find_models
from trivium.repository.normalize import normalize
from trivium.repository.plan import ModelPlan, PlanOptions, problems_of, read_plan
from trivium.repository.validate_ensemble import check_components
from trivium.sources.model_folder import find_model


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """One model. `backend` and `versions` are empty when the configuration doesn't even tell these."""

    name: str
    backend: str = ""
    versions: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    """Most begin with `file:line`, the file relative to its repository."""


def check_repository(paths: Sequence[Path], options: PlanOptions) -> list[ModelCheck]:
    """Every model by name. What only a model's own file can tell (its tensors, whether it can be read) is for loading to find out."""
    found = find_models(paths)
    plans: dict[str, ModelPlan] = {}
    problems: dict[str, list[str]] = {}
    for name, folders in found.items():
        problems[name] = _unreadable(folders, options)
        if not problems[name]:
            plans[name] = read_plan(folders[0], options)
    for name, plan in plans.items():
        problems[name] += [*_missing_files(plan), *_ensemble_problems(plan, plans)]
    return [_summary(name, plans.get(name), problems[name]) for name in found]


def _unreadable(folders: Sequence[ModelFolder], options: PlanOptions) -> list[str]:
    try:
        check_unique(folders)
    except InvalidRequest as error:
        return [error.message]
    return problems_of(folders[0], options)


def _summary(name: str, plan: ModelPlan | None, problems: Sequence[str]) -> ModelCheck:
    if plan is None:
        return ModelCheck(name=name, problems=tuple(problems))
    return ModelCheck(name=name, backend=plan.config.backend or plan.config.platform, versions=tuple(plan.versions), problems=tuple(problems))


def _missing_files(plan: ModelPlan) -> Iterator[str]:
    config = plan.config
    for version, path in plan.versions.items() if not plan.is_ensemble else ():
        names = [config.default_model_filename, *config.cc_model_filenames.values()]
        is_there = any(name and (path / name).exists() for name in names)
        if config.backend in LLM_BACKENDS:
            is_there = is_there or find_model(path) is not None
        if not is_there:
            yield f"{plan.name}/{version}: there is no {names[0] or 'model'} in it"
        yield from (f"{plan.name}/{version}/{name} {wrong}" for name in names if name and (wrong := wrong_kind(path / name)))
    for index, output in enumerate(config.output):
        if output.label_filename and not (plan.folder.path / output.label_filename).is_file():
            yield plan.locate(f"there is no label file {output.label_filename}", ("output", index, "label_filename"))
    for index, warmup in enumerate(config.model_warmup):
        for name in sorted(warmup.inputs):
            file = warmup.inputs[name].input_data_file
            if file and not (plan.folder.path / "warmup" / file).is_file():
                yield plan.locate(f"there is no warmup file warmup/{file}", ("model_warmup", index))


def _ensemble_problems(plan: ModelPlan, plans: Mapping[str, ModelPlan]) -> Iterator[str]:
    cycle = find_cycle(plan.name, plans)
    if cycle:
        yield plan.locate(f"circular dependency between ensembles: {' -> '.join(cycle)}", ("ensemble_scheduling",))
    for part, versions in needs(plan).items():
        if part not in plans:
            yield plan.locate(f"ensemble '{plan.name}' depends on '{part}', which can't be served", ("ensemble_scheduling",))
            continue
        for version in sorted(versions - {-1} - set(plans[part].versions)):
            yield plan.locate(f"ensemble '{plan.name}' depends on '{part}' whose required version {version} is not served", ("ensemble_scheduling",))
    stated = {name: _normal(plans[name]) for name in needs(plan) if name in plans and _says_its_tensors(plans[name].config)}
    yield from (plan.locate(message, where) for message, where in check_components(plan.config, stated))


def _says_its_tensors(config: ModelConfig) -> bool:
    """Whether nothing of its inputs and outputs is left to its file."""
    tensors = [*config.input, *config.output]
    return bool(config.input) and bool(config.output) and all(tensor.data_type and tensor.dims for tensor in tensors)


def _normal(plan: ModelPlan) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(plan.config)
    normalize(config)
    return config

"""What loading a model would do: its configuration as far as it can be told without its files, and the versions its policy picks.

Reading a plan touches the disk and runs in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.protocol.config_json import config_from_json
from trivium.protocol.model_config import ModelConfig
from trivium.repository.backend_names import ENSEMBLE, complete_backend, no_version
from trivium.repository.config_text import BadModelConfig, ConfigText, Field, read_config
from trivium.repository.layout import ModelFolder, Stamp, stamp
from trivium.repository.normalize import merge_completion, normalize, normalize_instances
from trivium.repository.validate import Problem, check_complete, check_stated
from trivium.repository.validate_instances import check_gpus
from trivium.repository.versions import served_versions


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Settings of the server that decide how a folder is read."""

    config_name: str = ""
    """Which of a model's `configs/*.pbtxt` to take."""
    auto_complete: bool = True
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model, ready to be loaded."""

    folder: ModelFolder
    text: ConfigText
    """The configuration as it was written, for the lines of errors."""
    config: ModelConfig
    """With name, back end, file name, version policy and instance groups; inputs, outputs and batch size may still be missing."""
    versions: Mapping[int, Path]
    """Those that are to be served, lowest first."""
    stamp: Stamp
    options: PlanOptions
    override: str | None = None
    """JSON that a load request brought instead of the file."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_ensemble(self) -> bool:
        return self.config.platform == ENSEMBLE

    def complete(self, config: ModelConfig, found: ModelConfig | None) -> ModelConfig:
        """See `LoadContext.complete`. Raises `BadModelConfig` with the place of what is wrong."""
        complete = ModelConfig()
        complete.CopyFrom(config)
        if found is not None:
            merge_completion(complete, found)
        normalize(complete)
        self.refuse(check_complete(complete))
        return complete

    def refuse(self, problems: Iterable[Problem]) -> None:
        """Raises `BadModelConfig` for the first problem, if there is one, with file and line."""
        for problem in problems:
            raise BadModelConfig(self.locate(problem.message, problem.where))

    def locate(self, message: str, where: Field = ()) -> str:
        return f"{self.text.where(where)}: {message}"


def read_plan(folder: ModelFolder, options: PlanOptions, override: str | None = None) -> ModelPlan:
    """Raises `BadModelConfig` for anything that keeps the model from being served, `InvalidRequest` for an `override` that isn't valid."""
    try:
        return _read_plan(folder, options, override)
    except OSError as error:
        raise BadModelConfig(f"{folder.name}: its folder can't be read: {error.strerror}") from None


def _read_plan(folder: ModelFolder, options: PlanOptions, override: str | None) -> ModelPlan:
    before = stamp(folder.path)
    text = _read_text(folder, options, override)
    config = ModelConfig()
    config.CopyFrom(text.config)
    if config.name and config.name != folder.name:
        message = f"unexpected directory name '{folder.name}' for model '{config.name}', directory name must equal model name"
        raise BadModelConfig(f"{text.where(('name',))}: {message}")
    config.name = folder.name
    complete_backend(config, folder.path)
    plan = ModelPlan(folder=folder, text=text, config=config, versions={}, stamp=before, options=options, override=override)
    plan.refuse(check_stated(config))
    normalize_instances(config, options.gpus)
    plan.refuse(Problem(message, where) for message, where in check_gpus(config, options.gpus))
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    return replace(plan, versions=_choose_versions(plan))


def problems_of(folder: ModelFolder, options: PlanOptions) -> list[str]:
    """Everything that is wrong with a model as far as it can be told without loading it, each with its place."""
    try:
        plan = read_plan(folder, options)
    except BadModelConfig as error:
        first = error.message
    else:
        return [plan.locate(problem.message, problem.where) for problem in check_complete(_normal(plan))] if plan.is_ensemble else []
    return [first, *(text for text in _other_problems(folder, options) if text != first)]


def _other_problems(folder: ModelFolder, options: PlanOptions) -> list[str]:
    try:
        text = _read_text(folder, options, None)
        config = ModelConfig()
        config.CopyFrom(text.config)
        config.name = config.name or folder.name
        complete_backend(config, folder.path)
    except BadModelConfig:
        return []
    return [f"{text.where(problem.where)}: {problem.message}" for problem in check_stated(config)]


def _normal(plan: ModelPlan) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(plan.config)
    normalize(config)
    return config


def _read_text(folder: ModelFolder, options: PlanOptions, override: str | None) -> ConfigText:
    if override is not None:
        return ConfigText(config_from_json(override), f"configuration in the load request of '{folder.name}'", {})
    file = folder.config_file(options.config_name)
    if file is not None:
        # Relative to the repository: reasons are shown to clients, whom the server's folders don't concern.
        return read_config(file, str(file.relative_to(folder.repository)))
    if not options.auto_complete:
        raise BadModelConfig(f"{folder.name}: must provide model configuration, auto-completion is turned off")
    return ConfigText(ModelConfig(), folder.name, {})


def _choose_versions(plan: ModelPlan) -> dict[int, Path]:
    """Raises `BadModelConfig` when no version can be served. An ensemble has no files and needs no version's folder: it is version 1 then."""
    available = plan.folder.versions()
    if not available and plan.is_ensemble:
        available = {1: plan.folder.path}
    chosen = served_versions(plan.config, available)
    if not chosen:
        raise BadModelConfig(plan.locate(no_version(plan.name, plan.folder.path), ("version_policy",)))
    return {version: available[version] for version in chosen}

"""Loading and unloading across models: what an ensemble needs comes first, what can't be loaded says why and stops nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from trivium.errors import InvalidRequest, ModelNotFound, TriviumError
from trivium.log import one_line
from trivium.protocol.model_config import ModelConfig
from trivium.repository.config_text import BadModelConfig
from trivium.repository.dependencies import dependents, find_cycle, needs
from trivium.repository.entry import UNLOADED, ModelEntry
from trivium.repository.layout import ModelFolder, check_unique, find_model
from trivium.repository.loader import Loader, is_unchanged
from trivium.repository.overrides import remove_files, write_files
from trivium.repository.plan import ModelPlan, PlanOptions, read_plan
from trivium.repository.reasons import reason_of, without_paths
from trivium.repository.validate_ensemble import check_components

logger = logging.getLogger(__name__)


class Operations:
    """Works on the entries of one repository, each under its lock."""

    def __init__(self, entries: dict[str, ModelEntry], loader: Loader, paths: Sequence[Path], options: PlanOptions, taken: frozenset[str]) -> None:
        self._entries = entries
        self._loader = loader
        self._paths = paths
        self._options = options
        self._taken = taken

    def known(self, name: str) -> ModelEntry:
        return self._entries.setdefault(name, ModelEntry(name))

    def note(self, name: str, reason: str) -> None:
        """A model can't be served. The index says why, unless its versions do."""
        entry = self.known(name)
        if not any(line.reason and line.reason in reason for line in entry.index()):
            logger.error("failed to load: %s", one_line(reason), extra={"model": name})
        if not entry.is_ready:
            entry.reason = without_paths(reason, self._paths)

    def why(self, entry: ModelEntry) -> str:
        return entry.reason or "; ".join(line.reason for line in entry.index() if line.reason)

    def unload(self, entry: ModelEntry, reason: str = UNLOADED) -> None:
        tasks = self._loader.unload(entry, reason)
        self._loader.discard_upload(entry, tasks)

    async def load_named(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """What a load request asks for. Raises `ModelNotFound` or `InvalidRequest`."""
        uploaded = await asyncio.to_thread(write_files, name, files) if files else None
        try:
            plans = await self._plan_named(name, config_json, uploaded)
            for part in plans:
                if part != name and not self.known(part).is_ready:
                    await self._load_part(part, plans[part], name)
            entry = self.known(name)
            async with entry.lock:
                entry.is_wanted = entry.is_explicit = True
                await self._load(entry, plans[name], uploaded)
        except BaseException:
            if uploaded is not None:
                await asyncio.to_thread(remove_files, uploaded)
            raise
        await self.refresh_ensembles([name])

    async def _plan_named(self, name: str, config_json: str | None, uploaded: Path | None) -> dict[str, ModelPlan]:
        """Plans of a model and of what it needs, parts first."""
        begin = f"failed to load '{name}', failed to poll from model repository"
        try:
            folder = await asyncio.to_thread(find_model, [uploaded] if uploaded is not None else self._paths, name)
            plan = await asyncio.to_thread(read_plan, folder, self._options, config_json)
            return await self._closure(plan)
        except ModelNotFound as error:
            raise ModelNotFound(f"{begin}: {error.message}", param="model") from None
        except (BadModelConfig, InvalidRequest) as error:
            self.note(name, error.message)
            raise InvalidRequest(f"{begin}: {error.message}", param=error.param or "model") from None
        except OSError as error:
            raise InvalidRequest(f"{begin}: {error.strerror}", param="model") from None

    async def _load_part(self, part: str, plan: ModelPlan, ensemble: str) -> None:
        entry = self.known(part)
        async with entry.lock:
            if entry.is_ready:
                return
            entry.is_wanted = True
            try:
                await self._load(entry, plan)
            except InvalidRequest as error:
                message = f"ensemble '{ensemble}' depends on '{part}' which has no loaded version. Model '{part}' loading failed with error: "
                raise InvalidRequest(message + error.message, param="model") from None

    async def load_all(self, plans: Mapping[str, ModelPlan], *, verify: bool = False) -> None:
        """Load many models side by side, each as soon as what it needs has been tried."""
        tasks: dict[str, asyncio.Task[None]] = {}
        for name, plan in plans.items():
            cycle = find_cycle(name, plans)
            if cycle:
                self.note(name, plan.locate(f"circular dependency between ensembles: {' -> '.join(cycle)}", ("ensemble_scheduling",)))
        circular = {name for name in plans if find_cycle(name, plans)}

        async def load(name: str) -> None:
            await asyncio.gather(*(tasks[part] for part in needs(plans[name]) if part in tasks))
            entry = self.known(name)
            async with entry.lock:
                await self._try_load(entry, plans[name], verify=verify)

        async with asyncio.TaskGroup() as group:
            for name in plans:
                if name not in circular:
                    tasks[name] = group.create_task(load(name), name=f"load {name}")

    async def read_plans(self, found: Mapping[str, Sequence[ModelFolder]]) -> dict[str, ModelPlan]:
        """Plans of those models that can be read; why the others can't is in their entries."""

        def read(folders: Sequence[ModelFolder]) -> ModelPlan:
            check_unique(folders)
            return read_plan(folders[0], self._options)

        outcomes = await asyncio.gather(*(asyncio.to_thread(read, folders) for folders in found.values()), return_exceptions=True)
        plans: dict[str, ModelPlan] = {}
        for name, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, ModelPlan):
                plans[name] = outcome
            elif isinstance(outcome, TriviumError):
                self.note(name, outcome.message)
            else:
                logger.error("reading a model's folder failed", exc_info=outcome, extra={"model": name})
                self.note(name, reason_of(outcome))
        return plans

    async def _load(self, entry: ModelEntry, plan: ModelPlan, uploaded: Path | None = None, *, verify: bool = False) -> None:
        """Raises `InvalidRequest`. The caller holds the lock. `verify`: not if the folder changed meanwhile."""
        parts = _tensors_of(self._part_configs(plan))
        if uploaded is None and is_unchanged(entry, plan) and parts == entry.parts:
            return
        if plan.name in self._taken:
            raise InvalidRequest(f"the name '{plan.name}' is taken by a language model served beside the repository", param="model")
        problem = self._lacking(plan) or self._misfit(plan)
        if problem:
            self.note(plan.name, problem)
            raise InvalidRequest(problem, param="model")
        retiring = await self._loader.load(entry, plan, verify=verify, afresh=parts != entry.parts)
        self._loader.discard_upload(entry, retiring)
        entry.uploaded, entry.parts = uploaded, parts

    async def _try_load(self, entry: ModelEntry, plan: ModelPlan, *, verify: bool = False) -> None:
        """As `_load`, with what went wrong in the entry and in the log. The caller holds the lock."""
        try:
            await self._load(entry, plan, verify=verify)
        except InvalidRequest as error:
            self.note(entry.name, error.message)
        except Exception as error:
            logger.exception("loading failed", extra={"model": entry.name})
            self.note(entry.name, reason_of(error))

    async def unload_parts(self, names: Sequence[str]) -> None:
        plans = await self._ensemble_plans()
        for name in names:
            entry = self._entries.get(name)
            if entry is None or entry.is_explicit or any(self._entries[other].is_ready for other in dependents(name, plans)):
                continue
            async with entry.lock:
                entry.is_wanted = False
                self.unload(entry)

    async def refresh_ensembles(self, changed: Sequence[str]) -> None:
        """Bring ensembles in line with the models they are made of: those that lack one go, those whose last one is back come back, and
        those of which one has other tensors now are loaded again."""
        plans = await self._ensemble_plans()
        for name in dict.fromkeys(other for model in changed for other in dependents(model, plans)):
            entry, plan = self._entries[name], plans[name]
            async with entry.lock:
                lacking = self._lacking(plan)
                misfit = "" if lacking else self._misfit(plan)
                if entry.is_ready and (lacking or misfit):
                    logger.warning("unloaded: %s", lacking or misfit, extra={"model": name})
                    self.unload(entry, misfit or UNLOADED)
                elif not lacking and (entry.is_ready or entry.is_wanted):
                    await self._try_load(entry, plan)

    def _misfit(self, plan: ModelPlan) -> str:
        """What of an ensemble's tensors isn't as its models have it; empty: nothing."""
        return next((plan.locate(message, where) for message, where in check_components(plan.config, self._part_configs(plan))), "")

    def _lacking(self, plan: ModelPlan) -> str:
        """What an ensemble needs and isn't ready, as a reason; empty: nothing."""
        for part, versions in needs(plan).items():
            entry = self._entries.get(part)
            if entry is None or not entry.is_ready:
                why = f" Model '{part}' loading failed with error: {self.why(entry)}" if entry is not None and self.why(entry) else ""
                return f"ensemble '{plan.name}' depends on '{part}' which has no loaded version.{why}"
            ready = {served.version for served in entry.ready()}
            for version in sorted(versions - {-1}):
                if version not in ready:
                    return f"ensemble '{plan.name}' depends on '{part}' whose required version {version} is not loaded"
        return ""

    def _part_configs(self, plan: ModelPlan) -> dict[str, ModelConfig]:
        """Complete configurations of what an ensemble is made of, as far as it is ready."""
        entries = {part: self._entries.get(part) for part in needs(plan)}
        return {part: entry.default.loaded.config for part, entry in entries.items() if entry is not None and entry.default is not None}

    async def _closure(self, plan: ModelPlan) -> dict[str, ModelPlan]:
        """`plan` and everything it needs that isn't loaded, parts first. Raises for parts that aren't there, and for circles."""
        plans = {plan.name: plan}
        pending = [plan]
        while pending:
            current = pending.pop()
            for part in needs(current):
                if part in plans:
                    continue
                entry = self._entries.get(part)
                if entry is not None and entry.plan is not None:
                    plans[part] = entry.plan
                else:
                    folder = await asyncio.to_thread(_find_part, self._paths, current.name, part)
                    plans[part] = await asyncio.to_thread(read_plan, folder, self._options)
                pending.append(plans[part])
        cycle = find_cycle(plan.name, plans)
        if cycle:
            raise InvalidRequest(f"circular dependency between ensembles: {' -> '.join(cycle)}", param="model")
        return {name: plans[name] for name in _parts_first(plan.name, plans)}

    async def _ensemble_plans(self) -> dict[str, ModelPlan]:
        """Plans of all ensembles that are or should be loaded; those that aren't are read anew."""
        found: dict[str, ModelPlan] = {}
        for name in sorted(self._entries):
            entry = self._entries[name]
            if entry.plan is not None and entry.plan.is_ensemble:
                found[name] = entry.plan
            elif entry.plan is None and entry.is_wanted:
                try:
                    folder = await asyncio.to_thread(find_model, self._paths, name)
                    plan = await asyncio.to_thread(read_plan, folder, self._options)
                except TriviumError:
                    continue
                if plan.is_ensemble:
                    found[name] = plan
        return found


def _tensors_of(parts: Mapping[str, ModelConfig]) -> bytes:
    """What an ensemble depends on in its models."""
    kept = ("name", "max_batch_size", "input", "output", "model_transaction_policy")
    texts: list[bytes] = []
    for config in parts.values():
        copy = ModelConfig()
        copy.CopyFrom(config)
        for field in copy.DESCRIPTOR.fields:
            if field.name not in kept:
                copy.ClearField(field.name)
        texts.append(copy.SerializeToString(deterministic=True))
    return b"\0".join(texts)


def _find_part(paths: Sequence[Path], ensemble: str, part: str) -> ModelFolder:
    try:
        return find_model(paths, part)
    except ModelNotFound as error:
        raise InvalidRequest(f"ensemble '{ensemble}' depends on '{part}' which has no loaded version: {error.message}", param="model") from None


def _parts_first(name: str, plans: Mapping[str, ModelPlan]) -> list[str]:
    ordered: dict[str, None] = {}

    def visit(model: str) -> None:
        for part in needs(plans[model]):
            if part not in ordered:
                visit(part)
        ordered[model] = None

    visit(name)
    return list(ordered)

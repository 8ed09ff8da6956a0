"""`ModelRepository`: folders of models, which of them are loaded, and the version that a request gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trivium.backends.load_context import CreateModel, LoadContext, LoadedModel
from trivium.backends.tensor_base import Inference
from trivium.batching.statistics import ModelStatistics
from trivium.errors import ConfigError, InvalidRequest, ModelLoadError, ModelNotFound, NotReady, TriviumError
from trivium.infer import InferRequest
from trivium.log import one_line
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import ModelConfig
from trivium.repository.backend_names import LLM_BACKENDS
from trivium.repository.dependencies import needs
from trivium.repository.entry import IndexEntry, ModelEntry, Served, TensorLease, VersionRecord, VersionState
from trivium.repository.layout import ModelFolder, check_name, check_repositories, find_models
from trivium.repository.loader import Loader, LoaderOptions
from trivium.repository.manager import ModelManager
from trivium.repository.operations import Operations
from trivium.repository.overrides import check_files
from trivium.repository.plan import ModelPlan, PlanOptions
from trivium.repository.poll import follow, look_at
from trivium.repository.versions import parse_version

logger = logging.getLogger(__name__)

ControlMode = Literal["none", "explicit", "poll"]

ALL_MODELS = "*"


@dataclass(frozen=True, kw_only=True)
class RepositoryOptions:
    """What of the server's settings the repository itself needs."""

    paths: Sequence[Path]
    control_mode: ControlMode = "none"
    load_models: Collection[str] = ()
    """With explicit control: what is loaded at the start; `*` alone: everything."""
    poll_s: float = 15.0
    """With poll control: time between two looks at the disk."""
    exit_on_error: bool = False
    """A model that can't be loaded at the start ends the server."""
    strict_readiness: bool = False
    """Ready only while every model that should be loaded is."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    loader: LoaderOptions = field(default_factory=LoaderOptions)


ContextFactory = Callable[["ModelRepository", ModelPlan], LoadContext]


class ModelRepository:
    """Belongs to one event loop. Requests never wait for anything here; whatever loads or unloads holds its model's lock."""

    def __init__(
        self,
        options: RepositoryOptions,
        create: CreateModel,
        make_context: ContextFactory,
        *,
        manager: ModelManager | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.options = options
        self.manager = manager or ModelManager()
        self.registry = registry or Registry()
        self._entries: dict[str, ModelEntry] = {}
        self._make_context = make_context
        self._loader = Loader(create, self._context, self.manager, options.loader)
        # Names of language models that are served beside the repository are taken.
        self._operations = Operations(self._entries, self._loader, options.paths, options.plan, frozenset(self.manager.states()))
        self.num_language_models = 0
        """How many are loaded at the start: what they share, they share among so many."""
        self._is_started = False
        self._poller: asyncio.Task[None] | None = None
        self._loads: set[asyncio.Task[None]] = set()

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def lease(self, name: str, version: str = "") -> TensorLease:
        """The right to use a version. Raises `ModelNotFound`, `NotReady` or, for a version that is no number, `InvalidRequest`."""
        return TensorLease(self._entry(name).find(version))

    def infer(self, request: InferRequest) -> Inference:
        """See `ModelCaller`: how models call each other."""
        lease = self.lease(request.model, request.version)
        try:
            inference = lease.model.infer(request)
        except BaseException:
            lease.release()
            raise
        inference.add_done_callback(lease.release)
        return inference

    # -- what is there ------------------------------------------------------------------------------------------------------------

    def is_ready(self, name: str, version: str = "") -> bool:
        """Raises `InvalidRequest` for a version that is no number."""
        parse_version(version)
        try:
            served = self._entry(name).find(version)
        except TriviumError:
            return False
        return served.loaded.model.is_alive

    def versions(self, name: str) -> list[int]:
        """Versions that are ready, lowest first. Raises `ModelNotFound`, or `NotReady` while the first one is loading."""
        entry = self._entry(name)
        entry.find("")
        return [served.version for served in entry.ready()]

    def config(self, name: str, version: str = "") -> ModelConfig:
        """The complete configuration. Raises as `lease`."""
        return self._entry(name).find(version).loaded.config

    def index(self, *, ready_only: bool) -> list[IndexEntry]:
        """Every model and version, by name, then number."""
        known = {name: entry for name, entry in self._entries.items() if not entry.is_forgotten}
        entries = [line for name in sorted(known) for line in known[name].index()]
        if self.options.control_mode == "explicit":
            entries += [IndexEntry(name=name) for name in find_models(self.options.paths) if name not in known]
            entries.sort(key=lambda line: line.name)
        return [line for line in entries if line.state == "READY"] if ready_only else entries

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Of every ready version, or of those named. Raises `InvalidRequest` when there are none of that name."""
        number = parse_version(version)
        entries = [self._entries[known] for known in sorted(self._entries) if not name or known == name]
        found = [served for entry in entries for served in entry.ready()]
        if name and not found:
            raise InvalidRequest(f"requested model '{name}' is not available", param="model")
        if number is not None:
            found = [served for served in found if served.version == number]
            if not found:
                raise InvalidRequest(f"requested model version is not available for model '{name}'", param="version")
        return [served.loaded.model.statistics for served in found]

    def check_ready(self) -> None:
        """Raises `NotReady` until what is loaded at the start has been tried; with strict readiness, while any model that should be there
        isn't."""
        if not self._is_started:
            raise NotReady("The models are being loaded.")
        if not self.options.strict_readiness:
            return
        for name in sorted(self._entries):
            entry = self._entries[name]
            if entry.is_wanted and not self.is_ready(name):
                raise NotReady(f"The model '{name}' is not ready.")

    # -- the start and the end ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is to be loaded. Returns when everything has been tried; what failed says why in the index and in the log.

        Raises `ConfigError` for a repository that can't be read or a model named that isn't there, and `ModelLoadError` with
        `exit_on_error`.
        """
        await asyncio.to_thread(check_repositories, self.options.paths)
        polls = self.options.control_mode == "poll"
        # Before anything is read: what changes meanwhile is a change.
        look = await asyncio.to_thread(look_at, self.options.paths) if polls else {}
        found = {name: folders for name, (folders, _) in look.items()} if polls else await asyncio.to_thread(find_models, self.options.paths)
        names = self._names_at_start(found)
        plans = await self._operations.read_plans({name: found[name] for name in names})
        for name in names:
            entry = self._operations.known(name)
            entry.is_wanted = entry.is_explicit = True
        self.num_language_models = sum(len(plan.versions) for plan in plans.values() if plan.config.backend in LLM_BACKENDS)
        await self._operations.load_all(plans, verify=polls)
        self._is_started = True
        if polls:
            self._poller = asyncio.create_task(follow(self, self.options.paths, self.options.poll_s, look), name="repository-poll")
        failed = [name for name in names if not self._entries[name].is_ready]
        if failed and self.options.exit_on_error:
            reasons = "; ".join(f"{name}: {one_line(self._operations.why(self._entries[name]))}" for name in failed)
            raise ModelLoadError(f"failed to load all models: {reasons}")

    def _names_at_start(self, found: Mapping[str, Sequence[ModelFolder]]) -> list[str]:
        if self.options.control_mode != "explicit":
            return list(found)
        wanted = dict.fromkeys(self.options.load_models)
        if ALL_MODELS in wanted:
            if len(wanted) > 1:
                raise ConfigError(f"Wildcard model name '{ALL_MODELS}' must be the ONLY startup model if specified at all.", param="load_model")
            return list(found)
        missing = [name for name in wanted if name not in found]
        if missing:
            raise ConfigError(f"failed to load '{missing[0]}': there is no such model in the repository", param="load_model")
        return list(wanted)

    async def sync(self, changed: Mapping[str, Sequence[ModelFolder]], removed: Sequence[str]) -> None:
        """Follow the disk (poll control): load models that are new or changed, unload those whose folder has gone. A folder that changes
        again while it is loaded is left for the next time."""
        for name in changed:
            entry = self._operations.known(name)
            entry.is_wanted = entry.is_explicit = True
        await self._operations.load_all(await self._operations.read_plans(changed), verify=True)
        for name in removed:
            entry = self._entries[name]
            async with entry.lock:
                entry.is_wanted = entry.is_explicit = False
                entry.reason = ""
                self._operations.unload(entry)
        await self._operations.refresh_ensembles([*changed, *removed])

    def adopt(self, name: str, loaded: LoadedModel) -> None:
        """Answer tensor requests for a language model that is served beside the repository, as its version 1."""
        entry = self._operations.known(name)
        record = entry.versions[1] = VersionRecord(1)
        record.served, record.state = Served(1, loaded), VersionState.READY
        entry.is_adopted = True
        entry.choose_default()

    async def close(self) -> None:
        """Unload everything and wait for it."""
        pending = [*self._loads, *([self._poller] if self._poller is not None else [])]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for entry in self._entries.values():
            if entry.is_adopted:
                continue
            entry.is_wanted = False
            tasks = self._loader.unload(entry)
            self._loader.discard_upload(entry, tasks)
        await self._loader.close()

    # -- control ------------------------------------------------------------------------------------------------------------------

    async def load(self, name: str, *, config_json: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model, and whatever it is made of. `config_json` takes the place of its `config.pbtxt`; `files`
        (`file:<version>/<name>`) that of its folder. A client that goes away does not stop it.

        Raises `NotReady` unless control is explicit, `ModelNotFound`, or `InvalidRequest` with the reason; what was served goes on then.
        """
        self._check_control()
        check_files(files or {}, config_json)
        check_name(name)
        task = asyncio.create_task(self._operations.load_named(name, config_json, files or {}), name=f"load {name}")
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        await asyncio.shield(task)

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Refuse new requests at once, and cancel a load in progress; requests in flight finish, and the index says UNLOADING until they have.
        Ensembles made of the model become unavailable with it. `unload_dependents`: of an ensemble, the parts too that nobody asked for by
        name and no other ensemble uses. A model that isn't loaded is no error.

        Raises `NotReady` unless control is explicit.
        """
        self._check_control()
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.is_adopted:
            raise InvalidRequest(f"'{name}' is served beside the repository and can't be unloaded", param="model")
        parts = list(needs(entry.plan)) if entry.plan is not None else []
        for task in entry.making:
            task.cancel()
        async with entry.lock:
            entry.is_wanted = entry.is_explicit = False
            self._operations.unload(entry)
        await self._operations.refresh_ensembles([name])
        if unload_dependents:
            await self._operations.unload_parts(parts)

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _context(self, plan: ModelPlan) -> LoadContext:
        context = self._make_context(self, plan)
        if not plan.is_ensemble:
            return context

        def complete(config: ModelConfig, found: ModelConfig | None) -> ModelConfig:
            """An ensemble gives as many responses as what it is made of."""
            whole = ModelConfig()
            whole.CopyFrom(config if found is None else found)
            whole.model_transaction_policy.decoupled = any(self.config(part).model_transaction_policy.decoupled for part in needs(plan))
            return plan.complete(config, whole)

        return replace(context, complete=complete)

    def _entry(self, name: str) -> ModelEntry:
        entry = self._entries.get(name)
        if entry is None or not (entry.versions or entry.is_wanted):
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found", param="model")
        return entry

    def _check_control(self) -> None:
        if self.options.control_mode != "explicit":
            raise NotReady("explicit model load / unload is not allowed if polling is enabled")

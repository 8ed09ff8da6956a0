"""Loading and unloading one model: new versions beside the old ones, swapped in all at once or not at all."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.backends.load_context import CreateModel, LoadContext, LoadedModel
from trivium.errors import InvalidRequest, TriviumError
from trivium.log import one_line
from trivium.repository.backend_names import LLM_BACKENDS
from trivium.repository.entry import UNLOADED, ModelEntry, Served, VersionRecord, VersionState
from trivium.repository.layout import CONFIG_FILE, stamp
from trivium.repository.manager import ModelManager
from trivium.repository.overrides import remove_files
from trivium.repository.plan import ModelPlan
from trivium.repository.reasons import reason_of, without_paths

logger = logging.getLogger(__name__)

MakeContext = Callable[[ModelPlan], LoadContext]


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    num_parallel: int = 4
    """Versions that are loaded at the same time."""
    num_retries: int = 0
    """How often a load that failed is tried again."""


class Loader:
    """`create` makes versions; `manager` gets the language models among them, for the routes that know models by name only."""

    def __init__(self, create: CreateModel, make_context: MakeContext, manager: ModelManager, options: LoaderOptions) -> None:
        self._create = create
        self._make_context = make_context
        self._manager = manager
        self._options = options
        self._slots = asyncio.Semaphore(options.num_parallel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._retiring: list[Served] = []
        self._handovers: set[asyncio.Task[None]] = set()

    # -- loading ------------------------------------------------------------------------------------------------------------------

    async def load(self, entry: ModelEntry, plan: ModelPlan, *, verify: bool = False, afresh: bool = False) -> list[asyncio.Task[None]]:
        """Serve exactly the versions of `plan`. The caller holds the entry's lock. The tasks returned end when what was served before, and
        is no longer, is closed. `verify`: not if the folder changed while it was read. `afresh`: versions that didn't change are loaded too.

        Raises `InvalidRequest`, with what every version failed with, and leaves what was served before as it was.
        """
        kept = set[int]() if afresh else unchanged_versions(entry, plan)
        new = [version for version in plan.versions if version not in kept]
        started = time.monotonic()
        self._begin(entry, plan, new)
        entry.making = [asyncio.create_task(self._make(plan, version), name=f"load {plan.name}:{version}") for version in new]
        try:
            outcomes = await asyncio.gather(*entry.making, return_exceptions=True)
        except asyncio.CancelledError:
            outcomes = await asyncio.gather(*entry.making, return_exceptions=True)
            await asyncio.gather(*(_close(plan.name, made) for made in outcomes if isinstance(made, LoadedModel)))
            self._give_up(entry, dict.fromkeys(new, "the server is shutting down"))
            raise
        finally:
            entry.making = []
        made = {version: outcome for version, outcome in zip(new, outcomes, strict=True) if isinstance(outcome, LoadedModel)}
        failed: dict[int, BaseException] = {
            version: outcome for version, outcome in zip(new, outcomes, strict=True) if isinstance(outcome, BaseException)
        }
        if made and not failed and verify and await asyncio.to_thread(stamp, plan.folder.path) != plan.stamp:
            failed = dict.fromkeys(made, InvalidRequest("the folder changed while it was being loaded"))
        if failed:
            await asyncio.gather(*(_close(plan.name, loaded) for loaded in made.values()))
            reasons = self._tell(plan, failed)
            self._give_up(entry, dict.fromkeys(made, UNLOADED) | reasons)
            raise InvalidRequest(_failure(plan.name, reasons), param="model")
        retiring = self._swap(entry, plan, made)
        logger.info("serving versions %s", list(plan.versions), extra={"model": plan.name, "duration_s": round(time.monotonic() - started, 3)})
        return retiring

    def _begin(self, entry: ModelEntry, plan: ModelPlan, new: list[int]) -> None:
        entry.reason = ""
        for version in new:
            record = entry.versions.setdefault(version, VersionRecord(version))
            if record.served is None:
                record.state, record.reason = VersionState.LOADING, ""
        if plan.config.backend in LLM_BACKENDS and entry.default is None:
            self._manager.expect_again(plan.name)

    async def _make(self, plan: ModelPlan, version: int) -> LoadedModel:
        context = self._make_context(plan)
        async with self._slots:
            for attempt in range(self._options.num_retries + 1):
                try:
                    return await self._create(plan.config, version, plan.versions[version], context)
                except TriviumError as error:
                    if attempt == self._options.num_retries:
                        raise
                    logger.warning("loading failed, trying again: %s", error.message, extra={"model": plan.name, "version": version})
        raise AssertionError("unreachable")

    def _tell(self, plan: ModelPlan, failed: dict[int, BaseException]) -> dict[int, str]:
        """What versions failed with: to the log as it is, to clients (the result) without the server's paths."""
        reasons = {version: reason_of(error) for version, error in failed.items()}
        for version, reason in reasons.items():
            logger.error("failed to load: %s", one_line(reason), extra={"model": plan.name, "version": version})
        return {version: without_paths(reason, [plan.folder.repository]) for version, reason in reasons.items()}

    def _give_up(self, entry: ModelEntry, reasons: dict[int, str]) -> None:
        for version, reason in reasons.items():
            record = entry.versions[version]
            record.reason = reason
            if record.state is VersionState.LOADING:
                record.state = VersionState.UNAVAILABLE
        if entry.default is None and entry.name in self._manager:
            self._manager.set_failed(entry.name, next(iter(reasons.values())))

    def _swap(self, entry: ModelEntry, plan: ModelPlan, made: dict[int, LoadedModel]) -> list[asyncio.Task[None]]:
        """Not a moment without a version: there is no await in here."""
        leaving: list[VersionRecord] = []
        for version, loaded in made.items():
            record = entry.versions[version]
            if _take_leave(record):
                leaving.append(record)
            record.served = Served(version, loaded)
            record.state, record.reason = VersionState.READY, ""
        for version, record in entry.versions.items():
            if version in plan.versions:
                record.reason = ""
            elif _take_leave(record):
                record.state = VersionState.UNLOADING
                leaving.append(record)
        entry.plan = plan
        entry.choose_default()
        handover = self._hand_over(entry)
        return [self._start_retiring(entry, record, after=handover) for record in leaving]

    def _hand_over(self, entry: ModelEntry) -> asyncio.Task[None] | None:
        """Give the routes that know language models by name the new one; the task ends when they use the old one no longer."""
        llm = entry.default.loaded.llm if entry.default is not None else None
        if llm is None:
            return None
        if entry.name not in self._manager:
            self._manager.expect_again(entry.name)
        return self._hand_over_by(self._manager.replace(entry.name, llm), entry.name)

    def _hand_over_by(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.spawn(work, name=f"hand over {name}")
        self._handovers.add(task)
        task.add_done_callback(self._handovers.discard)
        return task

    # -- unloading ----------------------------------------------------------------------------------------------------------------

    def unload(self, entry: ModelEntry, reason: str = UNLOADED) -> list[asyncio.Task[None]]:
        """New requests are refused at once. The tasks end when those in flight have and everything is closed."""
        handover = self._hand_over_by(self._manager.remove(entry.name), entry.name) if entry.name in self._manager else None
        tasks: list[asyncio.Task[None]] = []
        for record in entry.versions.values():
            if _take_leave(record):
                record.state = VersionState.UNLOADING
                tasks.append(self._start_retiring(entry, record, after=handover, reason=reason))
            elif record.state is not VersionState.UNLOADING:
                record.state = VersionState.UNAVAILABLE
                record.reason = record.reason or reason
        entry.default = None
        entry.plan = None
        return tasks

    def discard_upload(self, entry: ModelEntry, after: list[asyncio.Task[None]]) -> None:
        """Remove the files that came with a load request once `after` has ended: nothing is served from them then."""
        if entry.uploaded is not None:
            uploaded, entry.uploaded = entry.uploaded, None
            self.spawn(_remove_after(uploaded, after), name=f"remove files of {entry.name}")

    def _start_retiring(
        self, entry: ModelEntry, record: VersionRecord, *, after: asyncio.Task[None] | None, reason: str = UNLOADED
    ) -> asyncio.Task[None]:
        served = record.leaving
        assert served is not None, "nothing is leaving"
        self._retiring.append(served)
        return self.spawn(self._retire(entry, record, served, after, reason), name=f"retire {entry.name}:{served.version}")

    async def _retire(self, entry: ModelEntry, record: VersionRecord, served: Served, after: asyncio.Task[None] | None, reason: str) -> None:
        """Close `served` when nobody uses it any longer, here or (`after`) on the routes that know language models by name."""
        await served.wait_idle()
        if after is not None and not served.is_abandoned:
            await asyncio.wait({after})
        self._retiring.remove(served)
        await _close(entry.name, served.loaded)
        if record.leaving is served:
            record.leaving = None
            if record.state is VersionState.UNLOADING:
                record.state, record.reason = VersionState.UNAVAILABLE, reason

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """A task that is kept until it ends."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for everything that is being unloaded, but not for requests in flight: closing their models ends them."""
        for served in self._retiring:
            served.abandon()
        for task in self._handovers:
            task.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _take_leave(record: VersionRecord) -> bool:
    """Give no more leases on what a version serves. Returns whether there was anything."""
    if record.served is None:
        return False
    record.served, record.leaving = None, record.served
    return True


def unchanged_versions(entry: ModelEntry, plan: ModelPlan) -> set[int]:
    """Versions that can stay as they are: same files, and nothing but the version policy changed in the configuration."""
    before = entry.plan
    if before is None or before.folder != plan.folder or not _same_but_policy(before, plan) or _shared_files(before) != _shared_files(plan):
        return set()
    ready = {served.version for served in entry.ready()}
    return {version for version in plan.versions if version in ready and _files(before, version) == _files(plan, version)}


def is_unchanged(entry: ModelEntry, plan: ModelPlan) -> bool:
    """Whether loading would do nothing."""
    kept = unchanged_versions(entry, plan)
    return len(kept) == len(plan.versions) == len(entry.ready())


def _same_but_policy(one: ModelPlan, other: ModelPlan) -> bool:
    texts: list[bytes] = []
    for plan in (one, other):
        copy = type(plan.config)()
        copy.CopyFrom(plan.config)
        copy.ClearField("version_policy")
        texts.append(copy.SerializeToString(deterministic=True))
    return texts[0] == texts[1]


def _files(plan: ModelPlan, version: int) -> list[tuple[str, int, int, int]]:
    return [entry for entry in plan.stamp if entry[0].startswith(f"{version}/")]


def _shared_files(plan: ModelPlan) -> list[tuple[str, int, int, int]]:
    """Files of all versions: labels and the like. The configuration is compared by what it says."""
    return [entry for entry in plan.stamp if not entry[0].split("/", 1)[0].isdecimal() and entry[0] != CONFIG_FILE]


def _failure(name: str, reasons: dict[int, str]) -> str:
    texts = [f"version {version} is at UNAVAILABLE state: {reason};\n" for version, reason in reasons.items()]
    return f"load failed for model '{name}': {''.join(texts)}"


async def _close(name: str, loaded: LoadedModel) -> None:
    try:
        await loaded.model.close()
    except Exception:
        logger.exception("closing a model failed", extra={"model": name})


async def _remove_after(uploaded: Path, tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
    await asyncio.to_thread(remove_files, uploaded)

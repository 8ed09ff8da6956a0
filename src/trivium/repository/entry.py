"""One model of a repository: its versions, what state each is in, and the leases that an unload or a reload waits for."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path

import msgspec

from trivium.backends.load_context import LoadedModel
from trivium.backends.tensor_base import TensorModel
from trivium.errors import ModelNotFound, NotReady
from trivium.repository.plan import ModelPlan
from trivium.repository.versions import parse_version

UNLOADED = "unloaded"


class VersionState(StrEnum):
    """Triton's names."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the repository index."""

    name: str
    version: str = ""
    """Empty for a model of which no version was ever tried."""
    state: str = ""
    """Empty for a model that nobody has asked to load."""
    reason: str = ""


class TensorLease:
    """The right to use a version until `release`, which may be called more than once."""

    __slots__ = ("_served", "model")

    def __init__(self, served: Served) -> None:
        self.model: TensorModel = served.loaded.model
        self._served: Served | None = served
        served.num_leases += 1

    def release(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.num_leases -= 1
            if served.num_leases == 0 and served.idle is not None:
                served.idle.set()


class Served:
    """A loaded version. A reload makes another one; this one goes when its last lease does."""

    __slots__ = ("idle", "is_abandoned", "loaded", "num_leases", "version")

    def __init__(self, version: int, loaded: LoadedModel) -> None:
        self.version = version
        self.loaded = loaded
        self.num_leases = 0
        self.idle: asyncio.Event | None = None
        self.is_abandoned = False

    async def wait_idle(self) -> None:
        """Returns when nobody uses it, or when it is abandoned."""
        while self.num_leases > 0 and not self.is_abandoned:
            self.idle = asyncio.Event()
            await self.idle.wait()

    def abandon(self) -> None:
        """Wait for requests in flight no longer: closing the model ends them."""
        self.is_abandoned = True
        if self.idle is not None:
            self.idle.set()


class VersionRecord:
    """What the index says of a version. `served` is what requests get: while a reload goes on, the one before. `leaving` is what they got
    until a moment ago and some still use."""

    __slots__ = ("leaving", "reason", "served", "state", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.state = VersionState.LOADING
        self.reason = ""
        self.served: Served | None = None
        self.leaving: Served | None = None


class ModelEntry:
    """Belongs to the event loop. `lock` is held by whatever loads or unloads the model; requests never wait for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, VersionRecord] = {}
        self.default: Served | None = None
        """The highest version that is ready."""
        self.plan: ModelPlan | None = None
        """How what is served was loaded."""
        self.parts = b""
        """Of an ensemble: the tensors of what it is made of, as they were when it was loaded."""
        self.reason = ""
        """Why there is no version to speak of: a configuration that can't be read, a dependency that is missing."""
        self.is_wanted = False
        """Someone asked for it, or it was there at the start: to be brought back when what it depends on is back."""
        self.is_explicit = False
        """Asked for by its own name, and not only as a part of an ensemble."""
        self.is_adopted = False
        """Not from the repository: it is only answered for here."""
        self.uploaded: Path | None = None
        """The repository made for it from files of a load request."""
        self.lock = asyncio.Lock()
        self.making: list[asyncio.Task[LoadedModel]] = []
        """Versions being loaded now; an unload cancels them."""

    @property
    def is_ready(self) -> bool:
        return self.default is not None

    @property
    def is_forgotten(self) -> bool:
        """Nobody wants it any longer and it never had a version: as if it had never been there."""
        return not (self.versions or self.is_wanted or self.reason)

    @property
    def is_loading(self) -> bool:
        return any(record.state is VersionState.LOADING for record in self.versions.values())

    def find(self, version: str) -> Served:
        """The version that a request means. Raises `InvalidRequest`, `ModelNotFound` or `NotReady`, in Triton's words."""
        if not version:
            if self.default is not None:
                return self.default
            message = f"Request for unknown model: '{self.name}' has no available versions"
            raise NotReady(message) if self.is_loading else ModelNotFound(message, param="model")
        number = parse_version(version)
        record = self.versions.get(number) if number is not None else None
        if record is None:
            raise ModelNotFound(f"Request for unknown model: '{self.name}' version {number} is not found", param="model")
        if record.served is None:
            raise NotReady(f"Request for unknown model: '{self.name}' version {number} is not at ready state")
        return record.served

    def ready(self) -> list[Served]:
        """Versions that answer, lowest first."""
        records = [self.versions[version] for version in sorted(self.versions)]
        return [record.served for record in records if record.served is not None]

    def choose_default(self) -> None:
        ready = self.ready()
        self.default = ready[-1] if ready else None

    def index(self) -> list[IndexEntry]:
        if not self.versions:
            return [IndexEntry(name=self.name, state=VersionState.UNAVAILABLE if self.reason else "", reason=self.reason)]
        records = [self.versions[version] for version in sorted(self.versions)]
        return [IndexEntry(name=self.name, version=str(record.version), state=record.state, reason=record.reason) for record in records]

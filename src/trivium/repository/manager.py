"""`ModelManager`: named models, a state for each, and leases that an unload waits for."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from trivium.backends.base import ModelBackend
from trivium.errors import ModelNotFound, NotReady


class ModelState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


class Lease:
    """The right to use a model until `release`, which may be called more than once."""

    __slots__ = ("_is_released", "_use", "backend", "name")

    def __init__(self, name: str, use: _Use) -> None:
        self.name = name
        self.backend = use.backend
        self._use = use
        self._is_released = False
        use.num_leases += 1

    def release(self) -> None:
        if self._is_released:
            return
        self._is_released = True
        self._use.num_leases -= 1
        if self._use.num_leases == 0:
            self._use.idle.set()


class _Use:
    """Leases of one backend: a reload puts another one in its place while these go on."""

    def __init__(self, backend: ModelBackend) -> None:
        self.backend = backend
        self.num_leases = 0
        self.idle = asyncio.Event()

    async def wait_idle(self) -> None:
        while self.num_leases > 0:
            self.idle.clear()
            await self.idle.wait()


class _Entry:
    def __init__(self, names: tuple[str, ...], *, is_required: bool) -> None:
        self.names = names
        self.is_required = is_required
        self.state = ModelState.LOADING
        self.reason = ""
        self.use: _Use | None = None

    @property
    def backend(self) -> ModelBackend | None:
        return self.use.backend if self.use is not None else None


class ModelManager:
    """Names are given to a model before it is loaded (`expect`), so that a request meanwhile gets "not ready" and not "not found"."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def expect(self, names: tuple[str, ...], *, is_required: bool = True) -> None:
        """Announce a model; the first name is its own, the others are aliases. The server is ready only while every required one is."""
        assert names, "a model needs a name"
        entry = _Entry(names, is_required=is_required)
        for name in names:
            assert name not in self._entries, f"the name {name!r} is taken"
            self._entries[name] = entry

    def expect_again(self, name: str) -> None:
        """As `expect`, for a model that isn't required and may be left from a load that failed."""
        if name in self._entries:
            self._entries[name].state, self._entries[name].reason = ModelState.LOADING, ""
        else:
            self.expect((name,), is_required=False)

    def set_ready(self, name: str, backend: ModelBackend) -> None:
        self._entries[name].use = _Use(backend)
        self._entries[name].state, self._entries[name].reason = ModelState.READY, ""

    async def replace(self, name: str, backend: ModelBackend) -> None:
        """New leases get `backend`; returns when the last lease of the one before was released, which is the caller's to close."""
        before = self._entries[name].use
        self.set_ready(name, backend)
        if before is not None:
            await before.wait_idle()

    def set_failed(self, name: str, reason: str) -> None:
        entry = self._entries[name]
        entry.state, entry.reason = ModelState.FAILED, reason

    def add(self, names: tuple[str, ...], backend: ModelBackend) -> None:
        """`expect` and `set_ready` in one."""
        self.expect(names)
        self.set_ready(names[0], backend)

    def lease(self, name: str) -> Lease:
        """An empty name means the first model. Raises `ModelNotFound`, or `NotReady` for one that can't answer now."""
        name = name or next(iter(self._entries), "")
        entry = self._entries.get(name)
        if entry is None:
            raise ModelNotFound(f"The model {name!r} does not exist.", param="model")
        if entry.state is not ModelState.READY or entry.use is None:
            reason = f": {entry.reason}" if entry.reason else ""
            raise NotReady(f"The model {name!r} is {entry.state}{reason}.")
        return Lease(name, entry.use)

    async def unload(self, name: str) -> None:
        """New leases are refused at once; the model is closed when the last lease is released, and its names are free then."""
        entry = self._entries[name]
        await self._drain(entry)
        if entry.backend is not None:
            await entry.backend.close()
        self._forget(entry)

    async def remove(self, name: str) -> None:
        """As `unload`, for a backend that somebody else closes; the names are free when the last lease is released."""
        entry = self._entries[name]
        await self._drain(entry)
        self._forget(entry)

    async def _drain(self, entry: _Entry) -> None:
        entry.state = ModelState.UNLOADING
        if entry.use is not None:
            await entry.use.wait_idle()

    def _forget(self, entry: _Entry) -> None:
        for alias in entry.names:
            if self._entries.get(alias) is entry:
                del self._entries[alias]

    async def close(self) -> None:
        """Close every model, in the order they were added."""
        for entry in self._distinct():
            if entry.backend is not None:
                await entry.backend.close()

    def states(self, *, required_only: bool = False) -> dict[str, ModelState]:
        """State by name, aliases included, in the order they were added."""
        return {name: entry.state for name, entry in self._entries.items() if entry.is_required or not required_only}

    def names(self) -> list[str]:
        """Each model's own name, aliases left out, in the order they were added."""
        return [entry.names[0] for entry in self._distinct()]

    def backends(self, *, required_only: bool = False) -> list[tuple[str, ModelBackend]]:
        """Name (alias) and backend of everything that is ready, in the order they were added."""
        ready = [(name, entry) for name, entry in self._entries.items() if entry.state is ModelState.READY]
        return [(name, entry.backend) for name, entry in ready if entry.backend is not None and (entry.is_required or not required_only)]

    def _distinct(self) -> list[_Entry]:
        return [entry for name, entry in self._entries.items() if name == entry.names[0]]

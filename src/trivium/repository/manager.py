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

    __slots__ = ("_entry", "_is_released", "backend", "name")

    def __init__(self, name: str, entry: _Entry, backend: ModelBackend) -> None:
        self.name = name
        self.backend = backend
        self._entry = entry
        self._is_released = False
        entry.num_leases += 1

    def release(self) -> None:
        if self._is_released:
            return
        self._is_released = True
        self._entry.num_leases -= 1
        if self._entry.num_leases == 0:
            self._entry.idle.set()


class _Entry:
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.state = ModelState.LOADING
        self.reason = ""
        self.backend: ModelBackend | None = None
        self.num_leases = 0
        self.idle = asyncio.Event()


class ModelManager:
    """Names are given to a model before it is loaded (`expect`), so that a request meanwhile gets "not ready" and not "not found"."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def expect(self, names: tuple[str, ...]) -> None:
        """Announce a model; the first name is its own, the others are aliases."""
        assert names, "a model needs a name"
        entry = _Entry(names)
        for name in names:
            assert name not in self._entries, f"the name {name!r} is taken"
            self._entries[name] = entry

    def set_ready(self, name: str, backend: ModelBackend) -> None:
        entry = self._entries[name]
        entry.backend = backend
        entry.state = ModelState.READY

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
        if entry.state is not ModelState.READY or entry.backend is None:
            reason = f": {entry.reason}" if entry.reason else ""
            raise NotReady(f"The model {name!r} is {entry.state}{reason}.")
        return Lease(name, entry, entry.backend)

    async def unload(self, name: str) -> None:
        """New leases are refused at once; the model is closed when the last lease is released, and its names are free then."""
        entry = self._entries[name]
        entry.state = ModelState.UNLOADING
        while entry.num_leases > 0:
            entry.idle.clear()
            await entry.idle.wait()
        if entry.backend is not None:
            await entry.backend.close()
        for alias in entry.names:
            del self._entries[alias]

    async def close(self) -> None:
        """Close every model, in the order they were added."""
        for entry in self._distinct():
            if entry.backend is not None:
                await entry.backend.close()

    def states(self) -> dict[str, ModelState]:
        """State by name, aliases included, in the order they were added."""
        return {name: entry.state for name, entry in self._entries.items()}

    def backends(self) -> list[tuple[str, ModelBackend]]:
        """Name (alias) and backend of everything that is ready, in the order they were added."""
        return [(name, entry.backend) for name, entry in self._entries.items() if entry.state is ModelState.READY and entry.backend is not None]

    def _distinct(self) -> list[_Entry]:
        return [entry for name, entry in self._entries.items() if name == entry.names[0]]

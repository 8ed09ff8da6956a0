"""What the server process needs of an engine's client. `EngineClient` is the real one; tests bring a scripted one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from trivium.protocol.messages import AddRequest, EngineReady, EngineStats, TokenOutput


class EngineClientProtocol(Protocol):
    """Submit sequences, get their tokens back. All methods belong to one event loop."""

    @property
    def ready(self) -> EngineReady | None:
        """What the engine can do; None while it starts or is being restarted."""
        ...

    @property
    def is_dead(self) -> bool:
        """The process is gone and no other has taken its place (yet)."""
        ...

    def submit(self, request: AddRequest) -> AsyncIterator[TokenOutput]:
        """A finite stream; its last output has a finish reason. Nothing is sent before the first `__anext__`.

        Outputs that wait may be merged into one. Raises `NotReady` when no engine runs and `EngineDead` when it dies on the way.
        """
        ...

    def abort(self, request_ids: list[str]) -> None:
        """Drop these requests before the next step. Unknown ids are ignored."""
        ...

    async def probe(self, timeout_s: float) -> EngineStats:
        """Answered by the engine's own loop. Raises `NotReady` when it does not answer in time, `EngineDead` when it dies meanwhile."""
        ...

    def stats(self) -> EngineStats:
        """As last reported."""
        ...

    def add_stats_listener(self, listener: Callable[[EngineStats], None]) -> None:
        """`listener` gets every report, in order."""
        ...

    async def close(self) -> None:
        """Stop the engine."""
        ...

"""A generation without an engine, for tests of who comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trivium.backends.base import GenerateEvent
from trivium.errors import TriviumError
from trivium.types import FinishReason, PromptInfo, TokenEvent


class FakeGeneration:
    """Gives a `PromptInfo` when `begin` is called and its last event when `end` is."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log
        self.begins = asyncio.Event()
        self.ends = asyncio.Event()
        self.error: TriviumError | None = None
        self.start_error: TriviumError | None = None
        self._num_events = 0
        self._is_done = False
        self._callbacks: list[Callable[[], None]] = []

    async def start(self) -> None:
        if self.start_error is not None:
            self._finish()
            raise self.start_error

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> GenerateEvent:
        if self._is_done:
            raise StopAsyncIteration
        if self.error is not None:
            self._finish()
            raise self.error
        if self._num_events == 0:
            self._log.append(self.name)
        self._num_events += 1
        if self._num_events == 1:
            await self.begins.wait()
            return PromptInfo(prompt=None, prompt_token_ids=[1])
        await self.ends.wait()
        self._finish()
        return TokenEvent(index=0, finish_reason=FinishReason.STOP)

    async def aclose(self) -> None:
        self._finish()

    def fail(self, error: TriviumError) -> None:
        self.error = error

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _finish(self) -> None:
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

"""The engine streams of one request's sequences, read as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from trivium.backends.llm_choice import Choice
from trivium.protocol.messages import TokenOutput


class Feed(Protocol):
    async def get(self) -> tuple[Choice, TokenOutput]:
        """The next output of any sequence, in order within each. Raises what a stream raises."""
        ...

    async def stop(self, choice: Choice) -> None:
        """Close the choice's stream: if it was not at its end, the engine drops the sequence."""
        ...

    async def close(self) -> None:
        """`stop` for all."""
        ...


def create_feed(choices: list[Choice], streams: list[AsyncIterator[TokenOutput]]) -> Feed:
    return SingleFeed(choices[0], streams[0]) if len(choices) == 1 else MergedFeed(choices, streams)


class SingleFeed:
    """One sequence: nothing between the request's task and its stream."""

    def __init__(self, choice: Choice, stream: AsyncIterator[TokenOutput]) -> None:
        self._choice = choice
        self._stream = stream

    async def get(self) -> tuple[Choice, TokenOutput]:
        return self._choice, await anext(self._stream)

    async def stop(self, choice: Choice) -> None:
        await close_stream(self._stream)

    async def close(self) -> None:
        await close_stream(self._stream)


class MergedFeed:
    """Several sequences: a task reads each stream into one inbox."""

    def __init__(self, choices: list[Choice], streams: list[AsyncIterator[TokenOutput]]) -> None:
        self._inbox: deque[tuple[Choice, TokenOutput] | BaseException] = deque()
        self._arrived = asyncio.Event()
        self._choices = choices
        self._streams = {choice.index: stream for choice, stream in zip(choices, streams, strict=True)}
        self._tasks: dict[int, asyncio.Task[None]] | None = None

    async def get(self) -> tuple[Choice, TokenOutput]:
        if self._tasks is None:
            # Not before: reading a stream submits its sequence, and the request may have to wait for its turn.
            self._tasks = {choice.index: asyncio.create_task(self._read(choice, self._streams[choice.index])) for choice in self._choices}
        while True:
            while not self._inbox:
                self._arrived.clear()
                await self._arrived.wait()
            item = self._inbox.popleft()
            if isinstance(item, BaseException):
                raise item
            if not item[0].is_finished:
                return item

    async def stop(self, choice: Choice) -> None:
        task = None if self._tasks is None else self._tasks.pop(choice.index, None)
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        await close_stream(self._streams[choice.index])

    async def close(self) -> None:
        tasks = list((self._tasks or {}).values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for stream in self._streams.values():
            await close_stream(stream)

    async def _read(self, choice: Choice, stream: AsyncIterator[TokenOutput]) -> None:
        try:
            async for output in stream:
                self._inbox.append((choice, output))
                self._arrived.set()
        except Exception as error:
            self._inbox.append(error)
            self._arrived.set()


async def close_stream(stream: AsyncIterator[TokenOutput]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()

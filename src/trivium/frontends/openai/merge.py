"""Several generations read as one stream, for requests with a list of prompts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from trivium.service import GenerateEvent, Generation

Batch = list[tuple[int, GenerateEvent]]


async def merged(generations: list[Generation]) -> AsyncGenerator[Batch, None]:
    """What has arrived since the last batch, as pairs of generation number and event. The first error of any ends it.

    The caller closes the generations.
    """
    if len(generations) == 1:
        async for event in generations[0]:
            yield [(0, event)]
        return
    inbox: deque[tuple[int, GenerateEvent] | BaseException] = deque()
    arrived = asyncio.Event()
    tasks = [asyncio.create_task(_pump(number, generation, inbox, arrived)) for number, generation in enumerate(generations)]
    try:
        num_open = len(tasks)
        while num_open:
            await arrived.wait()
            arrived.clear()
            batch: Batch = []
            while inbox:
                item = inbox.popleft()
                if isinstance(item, StopAsyncIteration):
                    num_open -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    batch.append(item)
            if batch:
                yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(number: int, generation: Generation, inbox: deque[tuple[int, GenerateEvent] | BaseException], arrived: asyncio.Event) -> None:
    try:
        async for event in generation:
            inbox.append((number, event))
            arrived.set()
        inbox.append(StopAsyncIteration())
    except Exception as error:
        inbox.append(error)
    arrived.set()

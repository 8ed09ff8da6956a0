"""What a reader gets from a stream it reads in time, late, or after the engine's death."""

from __future__ import annotations

import asyncio

import pytest

from trivium.client.stream import OutputStream
from trivium.errors import EngineDead
from trivium.protocol.messages import TokenLogprobs, TokenOutput


def output(*token_ids: int, **fields: object) -> TokenOutput:
    return TokenOutput(request_id="r", token_ids=list(token_ids), **fields)  # type: ignore[arg-type]


async def test_a_reader_that_waits_gets_each_output_as_it_comes() -> None:
    stream = OutputStream()
    reading = asyncio.create_task(stream.get())
    await asyncio.sleep(0)
    stream.put(output(1))
    assert (await reading).token_ids == [1]


async def test_a_late_reader_gets_all_at_once_and_nothing_is_lost() -> None:
    stream = OutputStream()
    entry = TokenLogprobs(1, -0.5, 1, [], [])
    stream.put(output(1, logprobs=[entry], num_cached_tokens=16, scheduled_at=3.0))
    stream.put(output(scheduled_at=4.0))
    stream.put(output(2, logprobs=[entry]))
    stream.put(output(3, logprobs=[entry], finish_reason="stop", stop_reason=3, num_preemptions=1))
    merged = await stream.get()
    assert merged == output(
        1, 2, 3, logprobs=[entry] * 3, num_cached_tokens=16, scheduled_at=4.0, finish_reason="stop", stop_reason=3, num_preemptions=1
    )


async def test_what_came_before_a_death_is_still_read() -> None:
    stream = OutputStream()
    stream.put(output(1))
    stream.fail(EngineDead("gone"))
    assert (await stream.get()).token_ids == [1]
    with pytest.raises(EngineDead):
        await stream.get()


async def test_a_death_wakes_who_waits() -> None:
    stream = OutputStream()
    reading = asyncio.create_task(stream.get())
    await asyncio.sleep(0)
    stream.fail(EngineDead("gone"))
    with pytest.raises(EngineDead):
        await reading

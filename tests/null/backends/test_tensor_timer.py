"""The timer of queue delays and timeouts: not early, hardly late, in both event loops."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from trivium.backends import tensor_timer
from trivium.backends.tensor_timer import Timer

RUNNERS: list[Callable[[Coroutine[Any, Any, None]], None]] = [asyncio.run, uvloop.run]


@pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("has_timerfd", [True, False])
def test_it_fires_once_at_the_earliest_moment_it_was_set_to(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch, *, has_timerfd: bool
) -> None:
    if not has_timerfd:
        monkeypatch.setattr(tensor_timer, "_FileAlarm", tensor_timer._LoopAlarm)

    async def check() -> None:
        fired: list[int] = []
        timer = Timer(lambda: fired.append(time.monotonic_ns()))
        begin = time.monotonic_ns()
        timer.set(begin + 20_000_000)
        timer.set(begin + 2_000_000)
        timer.set(begin + 30_000_000)
        await asyncio.sleep(0.04)
        assert len(fired) == 1
        assert fired[0] >= begin + 2_000_000
        timer.set(time.monotonic_ns() - 5)
        await asyncio.sleep(0.01)
        assert len(fired) == 2
        timer.close()

    run(check())


async def test_a_closed_timer_neither_fires_nor_holds_a_file() -> None:
    fired: list[None] = []
    before = len(os.listdir("/proc/self/fd"))
    timer = Timer(lambda: fired.append(None))
    timer.set(time.monotonic_ns() + 1_000_000)
    timer.close()
    timer.set(time.monotonic_ns())
    await asyncio.sleep(0.005)
    assert fired == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])
def test_a_delay_of_a_few_hundred_microseconds_is_kept(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def check() -> None:
        lateness: list[int] = []
        for _ in range(30):
            done = asyncio.get_running_loop().create_future()
            timer = Timer(lambda done=done: done.set_result(time.monotonic_ns()))
            wanted = time.monotonic_ns() + 300_000
            timer.set(wanted)
            lateness.append(await done - wanted)
            timer.close()
        assert min(lateness) >= 0
        # Loops' own timers are off by 500 us and more.
        assert sorted(lateness)[10] < 300_000

    run(check())

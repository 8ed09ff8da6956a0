"""Comments that keep a silent stream from being cut off."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from trivium.frontends.tgi.generate import KeepAlive


async def test_a_silent_stream_gets_comments_and_a_busy_one_none() -> None:
    sent: list[Any] = []
    arrived = asyncio.Event()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])
        arrived.set()

    alive = KeepAlive(send, interval_s=0.02)
    async with asyncio.timeout(5):
        await arrived.wait()
        arrived.clear()
        await arrived.wait()
    alive.close()
    assert set(sent) == {b":\n\n"}
    sent.clear()
    busy = KeepAlive(send, interval_s=0.2)
    for _ in range(12):
        busy.touch()
        await asyncio.sleep(0.03)
    busy.close()
    await asyncio.sleep(0.25)
    assert sent == []

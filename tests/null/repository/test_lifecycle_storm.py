"""Many loads, unloads and changes on disk at once, with requests in between: whatever the order, what is leased stays open, what is ready
answers, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from helpers_repository import PLAIN, StubLoader, StubModel, ensemble_of, make_repository, write_model

from trivium.errors import TriviumError
from trivium.repository.repository import ModelRepository

SQUARE = PLAIN.replace("dims: [ 4 ]", "dims: [ 1 ]")
NAMES = ("a", "b", "c", "ens")


class Storm:
    def __init__(self, path: Path, repository: ModelRepository, seed: int) -> None:
        self.path = path
        self.repository = repository
        self.random = random.Random(seed)
        self.num_answers = 0

    async def operate(self) -> None:
        """One thing that somebody might do; what is refused is refused with a `TriviumError`."""
        name = self.random.choice(NAMES)
        await asyncio.sleep(self.random.random() * 0.005)
        try:
            match self.random.randrange(7):
                case 0 | 1:
                    await self.repository.load(name)
                case 2:
                    await self.repository.unload(name, unload_dependents=self.random.random() < 0.5)
                case 3 | 4 if name != "ens":
                    version = self.random.randrange(1, 4)
                    write_model(self.path, name, versions=(version,), config=SQUARE)
                    text = "broken" if self.random.random() < 0.3 else f"content {self.random.random()}"
                    (self.path / name / str(version) / "model.onnx").write_text(text)
                    await self.repository.load(name)
                case _:
                    pass
        except TriviumError:
            pass

    async def request(self) -> None:
        """Use a model for a while."""
        while True:
            await asyncio.sleep(self.random.random() * 0.001)
            try:
                lease = self.repository.lease(self.random.choice(NAMES))
            except TriviumError:
                continue
            model = lease.model
            assert isinstance(model, StubModel)
            try:
                await asyncio.sleep(self.random.random() * 0.003)
                assert not model.is_closed, "closed under a request"
                self.num_answers += 1
            finally:
                lease.release()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_the_order_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    for name in ("a", "b", "c"):
        write_model(tmp_path, name, SQUARE)
    write_model(tmp_path, "ens", ensemble_of("a", "b").replace("dims: [ 4 ]", "dims: [ 1 ]"), versions=(), file="")
    repository = make_repository(tmp_path, loader := StubLoader())
    await repository.start()
    storm = Storm(tmp_path, repository, seed)
    requests = [asyncio.create_task(storm.request()) for _ in range(4)]
    for _ in range(15):
        await asyncio.wait_for(asyncio.gather(*(storm.operate() for _ in range(6))), 20)
    for task in requests:
        task.cancel()
    ends = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    assert storm.num_answers > 50
    await drained(repository, loader)
    assert not repository.is_ready("ens") or (repository.is_ready("a") and repository.is_ready("b"))
    await repository.close()
    assert loader.open_models() == []


async def drained(repository: ModelRepository, loader: StubLoader) -> None:
    """Soon the index, what answers and what is open are the same."""
    async with asyncio.timeout(5):
        while any(line.state in ("LOADING", "UNLOADING") for line in repository.index(ready_only=False)):
            await asyncio.sleep(0.01)
        ready = sorted(f"{line.name}:{line.version}" for line in repository.index(ready_only=True))
        while sorted(loader.open_models()) != ready:
            await asyncio.sleep(0.01)

"""Poll control: what changes on disk is served once it is complete, and never before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from helpers_repository import PLAIN, StubLoader, StubModel, ensemble_of, make_repository, states, write_model

from trivium.repository.poll import Poller, is_being_written, look_at
from trivium.repository.repository import ModelRepository


async def started(path: Path, loader: StubLoader) -> tuple[ModelRepository, Poller]:
    """Polling by hand: `turn` looks at the disk once."""
    repository = make_repository(path, loader, control_mode="poll", poll_s=3600.0)
    await repository.start()
    return repository, Poller(look_at([path]))


async def turn(repository: ModelRepository, poller: Poller, path: Path) -> list[str]:
    changed, removed = poller.compare(look_at([path]))
    await repository.sync(changed, removed)
    return [*changed, *removed]


def content(repository: ModelRepository, name: str) -> str:
    lease = repository.lease(name)
    lease.release()
    assert isinstance(lease.model, StubModel)
    return lease.model.content


async def test_a_new_model_is_served_after_two_looks_that_agree(tmp_path: Path) -> None:
    repository, poller = await started(tmp_path, StubLoader())
    write_model(tmp_path, "m")
    assert await turn(repository, poller, tmp_path) == [] and poller.is_waiting
    assert await turn(repository, poller, tmp_path) == ["m"] and not poller.is_waiting
    assert repository.is_ready("m")
    assert await turn(repository, poller, tmp_path) == []


async def test_a_copy_that_goes_on_is_never_loaded(tmp_path: Path) -> None:
    repository, poller = await started(tmp_path, loader := StubLoader())
    folder = write_model(tmp_path, "m")
    with (folder / "1" / "model.onnx").open("w") as file:
        for part in ("half", " of", " it"):
            file.write(part)
            file.flush()
            assert await turn(repository, poller, tmp_path) == []
        # Nothing was written between these two looks, but the writer still has the file.
        assert await turn(repository, poller, tmp_path) == [] and poller.is_waiting
    assert loader.attempts == []
    assert await turn(repository, poller, tmp_path) == ["m"]
    assert content(repository, "m") == "half of it"


@pytest.mark.parametrize("name", ["model.onnx.part", ".model.onnx.Ab12Cd", "x.tmp"])
async def test_a_file_named_as_an_incomplete_copy_holds_its_model_back(tmp_path: Path, name: str) -> None:
    repository, poller = await started(tmp_path, StubLoader())
    partial = write_model(tmp_path, "m") / "1" / name
    partial.write_text("half")
    for _ in range(3):
        assert await turn(repository, poller, tmp_path) == []
    partial.unlink()
    await turn(repository, poller, tmp_path)
    assert await turn(repository, poller, tmp_path) == ["m"]


@pytest.mark.parametrize("name", [".gitattributes", "model.onnx", ".keep", "tmp", "part.onnx"])
def test_ordinary_files_are_complete(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert not is_being_written(tmp_path, ((name, 1, 0, 0),))


async def test_a_change_while_it_is_loaded_discards_what_was_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m")
    repository, poller = await started(tmp_path, loader := StubLoader())
    (folder / "1" / "model.onnx").write_text("second")
    await turn(repository, poller, tmp_path)
    gate = loader.gates["m"] = asyncio.Event()
    turning = asyncio.create_task(turn(repository, poller, tmp_path))
    await asyncio.sleep(0.05)
    (folder / "1" / "model.onnx").write_text("third, and longer")
    gate.set()
    await turning
    assert content(repository, "m") == "version 1", "neither half was served"
    assert "changed while it was being loaded" in states(repository)["m:1"]
    await turn(repository, poller, tmp_path)
    await turn(repository, poller, tmp_path)
    assert content(repository, "m") == "third, and longer" and states(repository) == {"m:1": "READY"}


async def test_a_failed_update_keeps_the_old_version_and_is_tried_again_when_it_changes(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m")
    write_model(tmp_path, "other")
    repository, poller = await started(tmp_path, loader := StubLoader())
    (folder / "1" / "model.onnx").write_text("broken")
    write_model(tmp_path, "other", versions=(2,))
    for _ in range(4):
        await turn(repository, poller, tmp_path)
    assert content(repository, "m") == "version 1" and repository.versions("other") == [2]
    assert loader.attempts.count(("m", 1)) == 2, "once, not at every look"
    (folder / "1" / "model.onnx").write_text("mended")
    await turn(repository, poller, tmp_path)
    await turn(repository, poller, tmp_path)
    assert content(repository, "m") == "mended"


async def test_a_folder_that_goes_is_unloaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m")
    repository, poller = await started(tmp_path, loader := StubLoader())
    os.rename(folder, tmp_path.parent / f"{tmp_path.name}-away")
    assert await turn(repository, poller, tmp_path) == ["m"]
    await asyncio.sleep(0.01)
    assert loader.open_models() == [] and states(repository) == {"m:1": "UNAVAILABLE (unloaded)"}


async def test_a_model_that_could_not_be_configured_is_tried_once_and_forgotten_with_its_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "bad", "nonsense")
    repository, poller = await started(tmp_path, StubLoader())
    assert list(states(repository)) == ["bad"]
    for _ in range(3):
        assert await turn(repository, poller, tmp_path) == [], "nothing changed on disk"
    os.rename(folder, tmp_path.parent / f"{tmp_path.name}-away")
    assert await turn(repository, poller, tmp_path) == ["bad"]
    assert states(repository) == {}
    write_model(tmp_path, "bad")
    await turn(repository, poller, tmp_path)
    await turn(repository, poller, tmp_path)
    assert states(repository) == {"bad:1": "READY"}


async def test_what_could_not_be_configured_at_the_start_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "bad", "nonsense")
    repository = make_repository(tmp_path, StubLoader(), control_mode="poll", poll_s=0.01)
    await repository.start()
    caplog.set_level("INFO")
    await asyncio.sleep(0.1)
    await repository.close()
    assert "the repository changed" not in caplog.text


async def test_an_ensemble_and_its_part_may_change_together(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    repository, poller = await started(tmp_path, StubLoader())
    wider = "dims: [ 5 ]"
    write_model(tmp_path, "a", PLAIN.replace("dims: [ 4 ]", wider))
    write_model(tmp_path, "ens", ensemble_of("a").replace("dims: [ 4 ]", wider), versions=(), file="")
    await turn(repository, poller, tmp_path)
    await turn(repository, poller, tmp_path)
    assert list(repository.config("ens").output[0].dims) == [5] and list(repository.config("a").output[0].dims) == [5]


async def test_the_loop_follows_the_disk(tmp_path: Path) -> None:
    repository = make_repository(tmp_path, StubLoader(), control_mode="poll", poll_s=0.01)
    await repository.start()
    write_model(tmp_path, "m")
    async with asyncio.timeout(5):
        while not repository.is_ready("m"):
            await asyncio.sleep(0.01)
    await repository.close()

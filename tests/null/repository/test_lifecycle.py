"""Loading, reloading and unloading: which version answers at every moment, what the index says, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from helpers_repository import PLAIN, StubLoader, StubModel, context_of, ensemble_of, make_repository, states, write_model

from trivium.backends.load_context import LoadedModel
from trivium.errors import ConfigError, InvalidRequest, ModelLoadError, ModelNotFound, NotReady
from trivium.repository import operations
from trivium.repository.entry import IndexEntry
from trivium.repository.layout import ModelFolder
from trivium.repository.loader import LoaderOptions
from trivium.repository.plan import ModelPlan
from trivium.repository.repository import ModelRepository, RepositoryOptions

BAD_VERSION = "failed to get model version from specified version string"


async def started(path: Path, loader: StubLoader, **options: object) -> ModelRepository:
    repository = make_repository(path, loader, **options)
    await repository.start()
    return repository


def model_of(repository: ModelRepository, name: str, version: str = "") -> StubModel:
    lease = repository.lease(name, version)
    lease.release()
    assert isinstance(lease.model, StubModel)
    return lease.model


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_everything_is_loaded_and_the_highest_version_is_the_default(tmp_path: Path) -> None:
    write_model(tmp_path, "all", PLAIN + "version_policy { all {} }", versions=(1, 2, 10))
    write_model(tmp_path, "last", versions=(1, 2, 10))
    repository = await started(tmp_path, loader := StubLoader(), control_mode="none")
    assert model_of(repository, "all").signature.version == 10
    assert model_of(repository, "all", "2").signature.version == 2
    assert repository.versions("all") == [1, 2, 10] and repository.versions("last") == [10]
    assert states(repository) == {"all:1": "READY", "all:2": "READY", "all:10": "READY", "last:10": "READY"}
    assert loader.open_models() == ["all:1", "all:2", "all:10", "last:10"]
    await repository.close()
    assert loader.open_models() == []


@pytest.mark.parametrize(
    ("name", "version", "kind", "text"),
    [
        ("nope", "", ModelNotFound, "Request for unknown model: 'nope' is not found"),
        ("m", "9", ModelNotFound, "Request for unknown model: 'm' version 9 is not found"),
        ("gone", "", ModelNotFound, "Request for unknown model: 'gone' has no available versions"),
        ("gone", "1", NotReady, "Request for unknown model: 'gone' version 1 is not at ready state"),
        (
            "m",
            "abc",
            InvalidRequest,
            f"{BAD_VERSION} 'abc' (details: stol), version should be an integral value > 0",
        ),
        ("m", "-1", InvalidRequest, f"{BAD_VERSION} '-1', version should be an integral value > 0"),
    ],
)
async def test_a_lease_that_cannot_be_had_is_refused_in_tritons_words(tmp_path: Path, name: str, version: str, kind: type, text: str) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "gone")
    repository = await started(tmp_path, StubLoader())
    await repository.unload("gone")
    await settled()
    with pytest.raises(kind) as caught:
        repository.lease(name, version)
    assert caught.value.message == text


async def test_a_reload_swaps_at_once_and_the_old_version_lives_until_its_last_lease(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    lease = repository.lease("m")
    old = lease.model
    write_model(tmp_path, "m", versions=(2,))
    gate = loader.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    assert model_of(repository, "m") is old, "the old version answers while the new one loads"
    assert states(repository) == {"m:1": "READY", "m:2": "LOADING"}
    gate.set()
    await loading
    new = model_of(repository, "m")
    assert new.signature.version == 2 and states(repository) == {"m:1": "UNLOADING", "m:2": "READY"}
    assert not loader.made[0].is_closed
    lease.release()
    lease.release()  # more than once is nothing
    await settled()
    assert loader.made[0].is_closed


async def test_a_released_old_version_is_closed_and_unloaded(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    lease = repository.lease("m")
    write_model(tmp_path, "m", versions=(2,))
    await repository.load("m")
    assert loader.open_models() == ["m:1", "m:2"]
    lease.release()
    await settled()
    assert loader.open_models() == ["m:2"]
    assert states(repository) == {"m:1": "UNAVAILABLE (unloaded)", "m:2": "READY"}


async def test_a_failed_reload_keeps_the_old_version_and_says_why(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    write_model(tmp_path, "m", versions=(2,))
    (tmp_path / "m" / "2" / "model.onnx").write_text("crash")
    with pytest.raises(InvalidRequest) as caught:
        await repository.load("m")
    assert caught.value.message == "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: RuntimeError: boom on load;\n"
    assert model_of(repository, "m") is loader.made[0]
    assert states(repository) == {"m:1": "READY", "m:2": "UNAVAILABLE (Internal: RuntimeError: boom on load)"}
    (tmp_path / "m" / "2" / "model.onnx").write_text("mended")
    await repository.load("m")
    await settled()
    assert states(repository) == {"m:1": "UNAVAILABLE (unloaded)", "m:2": "READY"}


async def test_of_several_new_versions_one_that_fails_stops_all(tmp_path: Path) -> None:
    write_model(tmp_path, "m", PLAIN + "version_policy { all {} }", versions=(1, 2))
    (tmp_path / "m" / "2" / "model.onnx").write_text("broken")
    repository = await started(tmp_path, loader := StubLoader())
    assert states(repository) == {"m:1": "UNAVAILABLE (unloaded)", "m:2": "UNAVAILABLE (Internal: the file is broken)"}
    assert loader.open_models() == []


async def test_one_bad_model_never_stops_the_rest(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_model(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_text("broken")
    write_model(tmp_path, "syntax", "max_batch_size: x\n")
    repository = await started(tmp_path, StubLoader(), control_mode="none")
    assert repository.is_ready("good") and not repository.is_ready("broken")
    found = states(repository)
    assert found["broken:1"] == "UNAVAILABLE (Internal: the file is broken)"
    assert found["syntax"].startswith("UNAVAILABLE (syntax/config.pbtxt:1:17: ")
    repository.check_ready()


async def test_exit_on_error_ends_the_start_with_every_reason(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_model(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_text("broken")
    with pytest.raises(ModelLoadError, match=r"failed to load all models: broken: .*the file is broken$"):
        await started(tmp_path, StubLoader(), exit_on_error=True)


async def test_strict_readiness_waits_for_every_model(tmp_path: Path) -> None:
    write_model(tmp_path, "broken")
    (tmp_path / "broken" / "1" / "model.onnx").write_text("broken")
    repository = make_repository(tmp_path, StubLoader(), strict_readiness=True)
    with pytest.raises(NotReady):
        repository.check_ready()
    await repository.start()
    with pytest.raises(NotReady, match="'broken' is not ready"):
        repository.check_ready()
    (tmp_path / "broken" / "1" / "model.onnx").write_text("mended")
    await repository.load("broken")
    repository.check_ready()


async def test_an_unload_refuses_at_once_and_waits_for_requests_in_flight(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    lease = repository.lease("m")
    await repository.unload("m")
    assert states(repository) == {"m:1": "UNLOADING"} and not repository.is_ready("m")
    with pytest.raises(ModelNotFound):
        repository.lease("m")
    assert loader.open_models() == ["m:1"]
    lease.release()
    await settled()
    assert states(repository) == {"m:1": "UNAVAILABLE (unloaded)"} and loader.open_models() == []
    await repository.unload("m")
    await repository.unload("never heard of")
    await repository.load("m")
    assert repository.is_ready("m")


async def test_loading_what_is_loaded_and_unchanged_does_nothing(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    await repository.load("m")
    assert loader.attempts == [("m", 1)]


async def test_another_version_policy_keeps_the_versions_that_stay(tmp_path: Path) -> None:
    write_model(tmp_path, "m", PLAIN + "version_policy { latest { num_versions: 2 } }", versions=(1, 2))
    repository = await started(tmp_path, loader := StubLoader())
    write_model(tmp_path, "m", PLAIN + "version_policy { specific { versions: [ 2, 3 ] } }", versions=(3,))
    await repository.load("m")
    await settled()
    assert loader.attempts == [("m", 1), ("m", 2), ("m", 3)]
    assert loader.open_models() == ["m:2", "m:3"]


async def test_racing_loads_and_unloads_run_one_after_the_other(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader(), load_models=())
    await asyncio.gather(*(repository.load("m") for _ in range(3)), repository.unload("m"))
    assert len(loader.open_models()) <= 1
    await repository.load("m")
    assert loader.open_models() == ["m:1"]


async def test_a_client_that_goes_away_does_not_stop_a_load(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader(), load_models=())
    gate = loader.gates["m"] = asyncio.Event()
    request = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    request.cancel()
    gate.set()
    await asyncio.sleep(0.05)
    assert repository.is_ready("m")


async def test_no_more_versions_load_at_once_than_allowed(tmp_path: Path) -> None:
    for index in range(6):
        write_model(tmp_path, f"m{index}")
    repository = make_repository(tmp_path, loader := StubLoader(), loader=LoaderOptions(num_parallel=2))
    await repository.start()
    assert loader.most_loading == 2 and len(loader.made) == 6


async def test_control_needs_explicit_mode(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, StubLoader(), control_mode="none")
    with pytest.raises(NotReady, match="explicit model load / unload is not allowed if polling is enabled"):
        await repository.load("m")
    with pytest.raises(NotReady):
        await repository.unload("m")


async def test_explicit_control_loads_what_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "b")
    repository = await started(tmp_path, StubLoader(), load_models=("a",))
    assert repository.index(ready_only=False) == [IndexEntry(name="a", version="1", state="READY"), IndexEntry(name="b")]
    assert repository.index(ready_only=True) == [IndexEntry(name="a", version="1", state="READY")]
    with pytest.raises(ConfigError, match="'zzz'"):
        await started(tmp_path, StubLoader(), load_models=("zzz",))
    with pytest.raises(ConfigError, match="ONLY startup model"):
        await started(tmp_path, StubLoader(), load_models=("*", "a"))


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../m", "a\\b", "a\0b", "x" * 300])
async def test_a_name_that_leaves_the_repository_is_refused(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / "repository", "m")
    write_model(tmp_path, "outside")
    repository = await started(tmp_path / "repository", StubLoader())
    with pytest.raises(InvalidRequest, match="Invalid model name"):
        await repository.load(name)


async def test_a_load_of_an_unknown_model_begins_with_tritons_words(tmp_path: Path) -> None:
    repository = await started(tmp_path, StubLoader())
    with pytest.raises(ModelNotFound, match="^failed to load 'nope', failed to poll from model repository: there is no folder 'nope'"):
        await repository.load("nope")


async def test_a_configuration_in_the_request_replaces_the_file(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    config = (
        '{"backend": "onnxruntime", "max_batch_size": 2, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],'
        ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": ["4"]}]}'
    )
    await repository.load("m", config_json=config)
    assert repository.config("m").max_batch_size == 2
    for wrong, text in [("{bad", "not valid"), ('{"zzz": 1}', "zzz"), ('{"backend": "onnxruntime", "max_batch_size": -3}', "non-negative")]:
        with pytest.raises(InvalidRequest, match=text) as caught:
            await repository.load("m", config_json=wrong)
        assert caught.value.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert repository.config("m").max_batch_size == 2
    await repository.load("m")
    assert repository.config("m").max_batch_size == 8, "the file counts again"
    await settled()
    assert loader.open_models() == ["m:1"]


async def test_a_model_may_arrive_in_the_request(tmp_path: Path) -> None:
    repository = await started(tmp_path, loader := StubLoader())
    tensor = '[{"name": "T", "data_type": "TYPE_FP32", "dims": [1]}]'
    config = f'{{"backend": "onnxruntime", "input": {tensor}, "output": {tensor}}}'
    await repository.load("new", config_json=config, files={"file:3/model.onnx": b"uploaded"})
    assert repository.versions("new") == [3] and loader.made[0].content == "uploaded"
    folder = repository._entries["new"].uploaded
    assert folder is not None and folder.exists()
    await repository.unload("new")
    await repository.close()
    assert not folder.exists()


@pytest.mark.parametrize("file", ["file:../../x", "file:/etc/x", "file:1", "file:1/../../x", "file:", "file:1/a\0b"])
async def test_a_file_that_would_leave_the_models_folder_is_refused(tmp_path: Path, file: str) -> None:
    repository = await started(tmp_path, StubLoader())
    with pytest.raises(InvalidRequest, match="must be 'file:<version>/<file name>'"):
        await repository.load("new", config_json="{}", files={file: b""})
    with pytest.raises(InvalidRequest, match="override model configuration must be provided"):
        await repository.load("new", files={"file:1/model.onnx": b""})


async def test_a_model_in_two_repositories_is_neither(tmp_path: Path) -> None:
    write_model(tmp_path / "one", "m")
    write_model(tmp_path / "two", "m")
    write_model(tmp_path / "two", "other")
    options = RepositoryOptions(paths=[tmp_path / "one", tmp_path / "two"])
    repository = ModelRepository(options, StubLoader(), context_of)
    await repository.start()
    assert not repository.is_ready("m") and repository.is_ready("other")
    assert "in more than one repository" in states(repository)["m"]


# -- ensembles --------------------------------------------------------------------------------------------------------------------


async def test_loading_an_ensemble_loads_what_it_is_made_of(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    repository = await started(tmp_path, StubLoader(), load_models=())
    await repository.load("ens")
    assert states(repository) == {"a:1": "READY", "ens:1": "READY"}


async def test_an_ensemble_goes_and_comes_back_with_its_parts(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    write_model(tmp_path, "outer", ensemble_of("ens").replace('key: "IN"', 'key: "X"').replace('key: "OUT"', 'key: "Y"'), versions=(), file="")
    repository = await started(tmp_path, StubLoader())
    assert states(repository) == {"a:1": "READY", "ens:1": "READY", "outer:1": "READY"}
    await repository.unload("a")
    await settled()
    assert states(repository) == {"a:1": "UNAVAILABLE (unloaded)", "ens:1": "UNAVAILABLE (unloaded)", "outer:1": "UNAVAILABLE (unloaded)"}
    await repository.load("a")
    assert states(repository) == {"a:1": "READY", "ens:1": "READY", "outer:1": "READY"}


async def test_unloading_an_ensemble_may_take_its_parts_with_it(tmp_path: Path) -> None:
    for name in ("own", "shared", "asked"):
        write_model(tmp_path, name, PLAIN.replace("dims: [ 4 ]", "dims: [ 1 ]"))
    write_model(tmp_path, "one", ensemble_of("own", "shared", "asked").replace("dims: [ 4 ]", "dims: [ 1 ]"), versions=(), file="")
    write_model(tmp_path, "two", ensemble_of("shared").replace("dims: [ 4 ]", "dims: [ 1 ]"), versions=(), file="")
    repository = await started(tmp_path, StubLoader(), load_models=("asked", "one", "two"))
    await repository.load("one")
    await repository.load("two")
    await repository.unload("one", unload_dependents=True)
    await settled()
    ready = {line.name for line in repository.index(ready_only=True)}
    assert ready == {"asked", "shared", "two"}


async def test_an_ensemble_whose_part_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    (tmp_path / "a" / "1" / "model.onnx").write_text("broken")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    write_model(tmp_path, "lost", ensemble_of("nowhere"), versions=(), file="")
    repository = await started(tmp_path, StubLoader())
    found = states(repository)
    assert "depends on 'a' which has no loaded version" in found["ens"] and "the file is broken" in found["ens"]
    assert "depends on 'nowhere' which has no loaded version" in found["lost"]
    (tmp_path / "a" / "1" / "model.onnx").write_text("mended")
    await repository.load("a")
    assert states(repository)["ens:1"] == "READY"


@pytest.mark.parametrize("decoupled", [False, True])
async def test_an_ensemble_is_decoupled_if_a_part_of_it_is(tmp_path: Path, *, decoupled: bool) -> None:
    write_model(tmp_path, "a", PLAIN + f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    repository = await started(tmp_path, loader := StubLoader())
    policy = repository.config("ens").model_transaction_policy
    assert repository.config("ens").HasField("model_transaction_policy") and policy.decoupled is decoupled
    await repository.load("ens")
    assert loader.attempts.count(("ens", 1)) == 1, "nothing changed"


async def test_an_ensemble_follows_the_tensors_of_its_parts(tmp_path: Path) -> None:
    write_model(tmp_path, "a")
    write_model(tmp_path, "ens", ensemble_of("a"), versions=(), file="")
    repository = await started(tmp_path, loader := StubLoader())
    write_model(tmp_path, "a", PLAIN + "instance_group { count: 3 }")
    await repository.load("a")
    assert loader.attempts.count(("ens", 1)) == 1, "its tensors are the same"
    write_model(tmp_path, "a", PLAIN + "model_transaction_policy { decoupled: true }")
    await repository.load("a")
    assert repository.config("ens").model_transaction_policy.decoupled
    write_model(tmp_path, "a", PLAIN.replace("dims: [ 4 ]", "dims: [ 5 ]"))
    await repository.load("a")
    await settled()
    assert "ensemble tensor Y: inconsistent shape" in states(repository)["ens:1"] and not repository.is_ready("ens")
    write_model(tmp_path, "a", PLAIN)
    await repository.load("a")
    assert repository.is_ready("ens")


async def test_ensembles_in_a_circle_are_refused_and_nothing_hangs(tmp_path: Path) -> None:
    link = ensemble_of("a").replace('key: "IN"', 'key: "X"').replace('key: "OUT"', 'key: "Y"')
    write_model(tmp_path, "a", link.replace('"a"', '"b"'), versions=(), file="")
    write_model(tmp_path, "b", link, versions=(), file="")
    write_model(tmp_path, "self", link.replace('"a"', '"self"'), versions=(), file="")
    write_model(tmp_path, "good")
    repository = await started(tmp_path, StubLoader(), control_mode="none")
    found = states(repository)
    assert "circular dependency between ensembles: a -> b -> a" in found["a"]
    assert "circular dependency" in found["b"] and "self -> self" in found["self"]
    assert found["good:1"] == "READY"
    explicit = await started(tmp_path, StubLoader(), load_models=())
    with pytest.raises(InvalidRequest, match="circular dependency"):
        await explicit.load("a")


async def test_statistics_are_of_what_is_ready(tmp_path: Path) -> None:
    write_model(tmp_path, "a", PLAIN + "version_policy { all {} }", versions=(1, 2))
    write_model(tmp_path, "b")
    repository = await started(tmp_path, StubLoader())
    assert len(repository.statistics()) == 3 and len(repository.statistics("a")) == 2 and len(repository.statistics("a", "2")) == 1
    with pytest.raises(InvalidRequest, match="^requested model 'nope' is not available$"):
        repository.statistics("nope")
    with pytest.raises(InvalidRequest, match="requested model version is not available for model 'a'"):
        repository.statistics("a", "7")


# -- the end, and what is nobody's fault ------------------------------------------------------------------------------------------


async def test_closing_stops_loads_in_progress_and_leaves_nothing_open(tmp_path: Path) -> None:
    write_model(tmp_path, "m", PLAIN + "version_policy { all {} }", versions=(1, 2))
    repository = await started(tmp_path, loader := StubLoader(), load_models=())
    original = StubLoader.__call__

    async def first_at_once(*arguments: Any) -> LoadedModel:
        if arguments[1] == 2:
            await asyncio.Event().wait()
        return await original(loader, *arguments)

    repository._loader._create = first_at_once
    loading = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    assert loader.open_models() == ["m:1"]
    await repository.close()
    assert loader.open_models() == []
    with pytest.raises(asyncio.CancelledError):
        await loading


async def test_a_close_waits_for_no_request(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    repository.lease("m")
    await asyncio.wait_for(repository.close(), 2)
    assert loader.open_models() == []


async def test_a_fault_of_ours_in_one_model_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "n")
    read = operations.read_plan

    def fail_for_m(folder: ModelFolder, *arguments: Any) -> ModelPlan:
        if folder.name == "m":
            raise ZeroDivisionError("oops")
        return read(folder, *arguments)

    monkeypatch.setattr(operations, "read_plan", fail_for_m)
    repository = await started(tmp_path, StubLoader(), control_mode="none")
    assert states(repository) == {"m": "UNAVAILABLE (Internal: ZeroDivisionError: oops)", "n:1": "READY"}


async def test_retries_are_as_many_as_asked_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m")
    (folder / "1" / "model.onnx").write_text("broken")
    repository = make_repository(tmp_path, loader := StubLoader(), loader=LoaderOptions(num_retries=2))
    await repository.start()
    assert loader.attempts == [("m", 1)] * 3


async def test_a_model_beside_the_repository_is_answered_for(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    lease = repository.lease("m")
    lease.release()
    repository.adopt("beside", LoadedModel(model=lease.model, config=repository.config("m")))
    assert model_of(repository, "beside") is loader.made[0] and states(repository)["beside:1"] == "READY"
    with pytest.raises(InvalidRequest, match="served beside the repository"):
        await repository.unload("beside")


async def test_a_folder_whose_name_is_no_text_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff")).mkdir()
    write_model(tmp_path, "m")
    repository = await started(tmp_path, StubLoader(), control_mode="none")
    assert states(repository) == {"m:1": "READY"}


async def test_a_model_may_be_loaded_again_while_it_is_being_unloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    lease = repository.lease("m")
    await repository.unload("m")
    await repository.load("m")
    assert states(repository) == {"m:1": "READY"} and loader.open_models() == ["m:1", "m:1"]
    lease.release()
    await settled()
    assert loader.made[0].is_closed and model_of(repository, "m") is loader.made[1]
    await repository.unload("m")
    await settled()
    assert states(repository) == {"m:1": "UNAVAILABLE (unloaded)"} and loader.open_models() == []
    assert "closing a model failed" not in caplog.text


async def test_an_unload_cancels_a_load_in_progress(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader(), load_models=())
    loader.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(repository.unload("m"), 1)
    with pytest.raises(InvalidRequest, match="the load was cancelled by an unload"):
        await loading
    assert loader.num_loading == 0 and states(repository)["m:1"].startswith("UNAVAILABLE")
    del loader.gates["m"]
    await repository.load("m")
    assert states(repository) == {"m:1": "READY"}


async def test_an_unload_during_a_reload_stops_both(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    repository = await started(tmp_path, loader := StubLoader())
    write_model(tmp_path, "m", versions=(2,))
    loader.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(repository.unload("m"), 1)
    with pytest.raises(InvalidRequest):
        await loading
    await settled()
    assert loader.open_models() == [] and not repository.is_ready("m")

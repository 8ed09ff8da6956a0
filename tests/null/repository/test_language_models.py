"""Language models in a repository: what their folders say to the engine, and how the routes that know models by name follow a reload."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers_repository import StubLoader, context_of, make_repository, states, write_model
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.backends.llm_repository import engine_arguments, tensors_for
from trivium.backends.load_context import LoadContext, LoadedModel
from trivium.config import EngineConfig, ModelSettings, SchedulerConfig
from trivium.errors import ModelLoadError, ModelNotFound, NotReady
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import TYPE_STRING, ModelConfig
from trivium.repository.manager import ModelManager, ModelState
from trivium.repository.normalize import merge_completion
from trivium.repository.repository import ModelRepository, RepositoryOptions
from trivium.service import InferenceService
from trivium.types import GenerateRequest, SamplingParams

LLM = "backend: 'vllm'"


def version_of(tmp_path: Path, arguments: object = None, **files: str) -> Path:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    if arguments is not None:
        (folder / "model.json").write_text(arguments if isinstance(arguments, str) else json.dumps(arguments))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def config(text: str = "") -> ModelConfig:
    made = ModelConfig(name="m", backend="vllm", default_model_filename="model.json")
    for pair in text.split():
        key, _, value = pair.partition("=")
        made.parameters[key].string_value = value
    return made


def test_engine_arguments_are_those_of_model_json(tmp_path: Path) -> None:
    version = version_of(tmp_path, {"model": "org/name", "max_model_len": 128, "disable_log_requests": True, "dtype": "float32"})
    engine = engine_arguments(config(), version)
    assert (engine.model.model, engine.model.max_model_len, engine.model.dtype) == ("org/name", 128, "float32")


def test_parameters_of_the_configuration_win(tmp_path: Path) -> None:
    version = version_of(tmp_path, {"model": "org/name", "max_model_len": 128})
    engine = engine_arguments(config("max_model_len=64 REPORT_CUSTOM_METRICS=yes MAX_NUM_SEQS=3"), version)
    assert engine.model.max_model_len == 64 and engine.scheduler.max_num_seqs == 3


def test_the_servers_settings_are_defaults_but_for_those_of_one_model(tmp_path: Path) -> None:
    version = version_of(tmp_path, {"model": "org/name", "max_num_seqs": 5})
    given = EngineConfig(model=ModelSettings(model="other", max_model_len=99, chat_template="x"), scheduler=SchedulerConfig(max_num_seqs=7))
    engine = engine_arguments(config(), version, given)
    assert (engine.model.model, engine.model.max_model_len, engine.model.chat_template, engine.scheduler.max_num_seqs) == ("org/name", 99, None, 5)


def test_a_model_in_the_folder_needs_no_name(tmp_path: Path) -> None:
    version = version_of(tmp_path, weights_gguf="")
    assert engine_arguments(config(), version).model.model == str(version / "weights.gguf")
    (version / "model.json").write_text('{"max_model_len": 32}')
    assert engine_arguments(config(), version).model.model == str(version / "weights.gguf")
    (version / "more.gguf").write_text("")
    with pytest.raises(ModelLoadError, match=r"^m/1 names no model: put its files there, or its name into model\.json"):
        engine_arguments(config(), version)
    (version / "model.json").write_text('{"model": "more.gguf"}')
    assert engine_arguments(config(), version).model.model == str(version / "more.gguf")


@pytest.mark.parametrize("named", ["", "SmolLM2-135M-Instruct"])
def test_the_packaged_model_goes_by_its_name(tmp_path: Path, named: str) -> None:
    assert engine_arguments(config(), version_of(tmp_path, {"model": named})).model.model == ""


@pytest.mark.parametrize(
    ("arguments", "parameters", "reason"),
    [
        ("{", "", r"^m/1/model\.json: "),
        ("[]", "", r"^m/1/model\.json: must be a JSON object"),
        ({"model": 3}, "", r"^m/1: 'model' must be text, got 3"),
        ({"model": "x", "max_model_length": 3}, "", r"^m/1/model\.json: max_model_length is not a setting; did you mean max_model_len"),
        ({"model": "x", "max_model_len": "long"}, "", r"^m/1/model\.json: max_model_len"),
        ({"model": "x", "enable_lora": True}, "", r"enable_lora=True is not supported"),
        ({"model": "x", "served_model_name": "y"}, "", r"served_model_name is refused"),
        ({"model": "x"}, "nosuch=1", r"parameter 'nosuch' of model 'm' is not a setting of the engine"),
        (None, "", r"^m/1 names no model"),
    ],
)
def test_what_the_engine_cannot_do_is_told_with_its_place(tmp_path: Path, arguments: object, parameters: str, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        engine_arguments(config(parameters), version_of(tmp_path, arguments))


def test_the_tensors_are_tritons_unless_the_configuration_has_its_own() -> None:
    bare = config()
    merge_completion(bare, tensors_for(bare))
    assert [tensor.name for tensor in bare.input if not tensor.optional] == ["text_input"]
    assert bare.output[0].name == "text_output" and bare.model_transaction_policy.decoupled
    own = config()
    own.input.add(name="text", data_type=TYPE_STRING, dims=[1])
    own.output.add(name="output", data_type=TYPE_STRING, dims=[1])
    merge_completion(own, tensors_for(own))
    assert [tensor.name for tensor in own.input if not tensor.optional] == ["text"] and "text_input" not in [tensor.name for tensor in own.input]
    assert "text_output" not in [tensor.name for tensor in own.output] and not own.model_transaction_policy.decoupled


# -- by name ----------------------------------------------------------------------------------------------------------------------


def backend(name: str) -> Any:
    return SimpleNamespace(name=name, is_alive=True)


async def test_a_replaced_backend_is_told_when_its_last_lease_has_gone() -> None:
    manager = ModelManager()
    manager.add(("m", "alias"), old := backend("old"))
    lease = manager.lease("alias")
    replacing = asyncio.create_task(manager.replace("m", new := backend("new")))
    await asyncio.sleep(0)
    assert manager.lease("m").backend is new and lease.backend is old and not replacing.done()
    lease.release()
    lease.release()
    await asyncio.wait_for(replacing, 1)


async def test_a_removed_name_is_free_once_its_leases_are_released() -> None:
    manager = ModelManager()
    manager.add(("m",), backend("m"))
    lease = manager.lease("m")
    removing = asyncio.create_task(manager.remove("m"))
    await asyncio.sleep(0)
    with pytest.raises(NotReady):
        manager.lease("m")
    lease.release()
    await asyncio.wait_for(removing, 1)
    assert "m" not in manager
    with pytest.raises(ModelNotFound):
        manager.lease("m")


async def test_a_name_left_from_a_failed_load_can_be_used_again() -> None:
    manager = ModelManager()
    manager.expect_again("m")
    manager.set_failed("m", "boom")
    with pytest.raises(NotReady, match="boom"):
        manager.lease("m")
    manager.expect_again("m")
    assert manager.states() == {"m": ModelState.LOADING}
    manager.set_ready("m", backend("m"))
    assert manager.lease("m").backend.name == "m"  # type: ignore[attr-defined]


class LlmLoader(StubLoader):
    """What it makes answers by name too."""

    async def __call__(self, config: ModelConfig, version: int, path: Path, context: LoadContext) -> LoadedModel:
        merge_completion(config, tensors_for(config))
        loaded = await super().__call__(config, version, path, context)
        return LoadedModel(model=loaded.model, config=loaded.config, llm=backend(f"{config.name}:{version}"))


async def test_the_routes_by_name_follow_loads_reloads_and_unloads(tmp_path: Path) -> None:
    write_model(tmp_path, "m", LLM, file="model.json")
    repository = make_repository(tmp_path, loader := LlmLoader(), load_models=())
    await repository.start()
    manager = repository.manager
    gate = loader.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(repository.load("m"))
    await asyncio.sleep(0.05)
    assert manager.states() == {"m": ModelState.LOADING}
    gate.set()
    await loading
    lease = manager.lease("m")
    assert lease.backend.name == "m:1"  # type: ignore[attr-defined]
    write_model(tmp_path, "m", LLM, versions=(2,), file="model.json")
    await repository.load("m")
    assert manager.lease("m").backend.name == "m:2"  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    assert loader.open_models() == ["m:1", "m:2"], "the old one is still used on a route by name"
    lease.release()
    await asyncio.sleep(0.01)
    assert loader.open_models() == ["m:2"]
    await repository.unload("m")
    await repository.close()
    assert loader.open_models() == []


async def test_a_failed_language_model_says_why_on_every_route(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", LLM, file="model.json")
    (folder / "1" / "model.json").write_text("broken")
    repository = make_repository(tmp_path, LlmLoader())
    await repository.start()
    with pytest.raises(NotReady, match="the file is broken"):
        repository.manager.lease("m")
    (folder / "1" / "model.json").write_text("mended")
    await repository.load("m")
    assert repository.manager.lease("m").backend.name == "m:1"  # type: ignore[attr-defined]


async def test_models_of_a_repository_do_not_decide_whether_the_server_is_ready(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", LLM, file="model.json")
    (folder / "1" / "model.json").write_text("broken")
    write_model(tmp_path, "n", LLM, file="model.json")
    repository = make_repository(tmp_path, LlmLoader())
    service = InferenceService(repository.manager, repository=repository)
    with pytest.raises(NotReady, match="being loaded"):
        await service.check_ready()
    await repository.start()
    await service.check_ready()
    assert repository.manager.states() == {"m": ModelState.FAILED, "n": ModelState.READY}
    strict = make_repository(tmp_path, LlmLoader(), strict_readiness=True)
    await strict.start()
    with pytest.raises(NotReady, match="The model 'm' is not ready"):
        await InferenceService(strict.manager, repository=strict).check_ready()


async def test_the_name_of_a_model_beside_the_repository_is_taken(tmp_path: Path) -> None:
    write_model(tmp_path, "m", LLM, file="model.json")
    write_model(tmp_path, "n", LLM, file="model.json")
    manager = ModelManager()
    manager.add(("m",), backend("beside"))
    options = RepositoryOptions(paths=[tmp_path])
    repository = ModelRepository(options, LlmLoader(), context_of, manager=manager)
    await repository.start()
    assert "the name 'm' is taken" in states(repository)["m"] and repository.is_ready("n")
    assert manager.lease("m").backend.name == "beside"  # type: ignore[attr-defined]


async def test_a_closed_language_model_leaves_nothing_in_the_server() -> None:
    registry = Registry()
    manager = ModelManager()
    service = InferenceService(manager, registry=registry)
    before = len(registry.refreshers)
    made = fake_backend(FakeEngine(), registry)
    manager.add(("m",), made)
    generation = service.generate(GenerateRequest(request_id="r", model="m", prompt="x", params=SamplingParams(max_tokens=2)))
    async for _ in generation:
        pass
    await generation.aclose()
    await manager.unload("m")
    await made.close()  # may be called again
    assert len(registry.refreshers) == before
    gone = weakref.ref(made)
    del made, generation
    gc.collect()
    assert gone() is None
    await service.close()

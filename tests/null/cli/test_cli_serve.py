"""`trivium serve` up to the moment a model would be loaded, and loading with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from trivium.cli import serve
from trivium.cli.loading import check_model, served_names
from trivium.cli.main import main
from trivium.cli.ready import ROUTES
from trivium.cli.vllm_flags import FLAGS
from trivium.config import HttpConfig, ModelSettings, ServerConfig
from trivium.config_io import settings_of
from trivium.errors import TriviumError
from trivium.frontends.app import create_app
from trivium.metrics.catalogue import LOG_LINES_DROPPED
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """Configs that would have been served; nothing is."""
    configs: list[ServerConfig] = []

    async def run(config: ServerConfig, sock: socket.socket) -> int:
        configs.append(config)
        sock.close()
        return 0

    monkeypatch.setattr(serve, "run", run)
    monkeypatch.setattr(serve, "check_model", lambda settings, **_: None)
    monkeypatch.setattr(serve.log, "setup", lambda: None)
    return configs


SERVE = ["serve", "--host", "127.0.0.1", "--port", "0"]


def test_flags_become_the_servers_config(started: list[ServerConfig]) -> None:
    assert main([*SERVE, "m", "--max-model-len", "4k", "--api-key", "a", "--api-key", "b", "--ignore-unknown-fields"]) == 0
    (config,) = started
    assert (config.engine.model.model, config.engine.model.max_model_len) == ("m", 4000)
    assert config.http.api_key == ("a", "b")
    assert config.http.ignore_unknown_fields


@pytest.mark.parametrize(("args", "model"), [([], ""), (["--model", "a"], "a"), (["a"], "a"), (["a", "--model", "a"], "a")])
def test_the_model_is_an_argument_or_a_flag(args: list[str], model: str, started: list[ServerConfig]) -> None:
    assert main([*SERVE, *args]) == 0
    assert started[0].engine.model.model == model


def test_the_model_may_come_from_a_variable(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_MODEL", "from-variable")
    assert main(SERVE) == 0
    assert started[0].engine.model.model == "from-variable"


def test_a_port_in_use_is_found_before_anything_is_loaded(started: list[ServerConfig], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--host", "127.0.0.1", "--port", port]) == 2
    assert port in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    "args",
    [
        ["--enable-chunked-prefill"],
        ["--tokenizer-mode", "auto"],
        ["--disable-log-requests", "--no-disable-log-stats"],
        ["--pipeline-parallel-size", "1"],
        ["--no-enable-auto-tool-choice"],
        ["--swap_space", "0"],
    ],
)
def test_vllms_flags_that_ask_for_nothing_are_accepted(args: list[str], started: list[ServerConfig]) -> None:
    assert main([*SERVE, *args]) == 0
    assert started == [ServerConfig(http=started[0].http)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m", "--model", "n"], "Two models were named: m and --model n."),
        (["--no-enable-chunked-prefill"], "--no-enable-chunked-prefill is refused: chunked prefill can't be turned off."),
        (["--quantization", "int3"], "quantization: must be one of auto, none, awq"),
        (["--enable-auto-tool-choice"], "--enable-auto-tool-choice is refused: tools are not supported yet."),
        (["--lora-modules", "a=b"], "--lora-modules a=b is refused"),
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size 2 is refused"),
        (["--trust-remote-code"], "trust_remote_code is refused"),
        (["a", "b"], "unexpected extra argument"),
    ],
)
def test_what_asks_for_something_is_refused_by_name(
    args: list[str], message: str, started: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SERVE, *args]) == 2
    assert message in capsys.readouterr().err
    assert started == []


def test_a_foreign_flag_is_no_setting_of_ours() -> None:
    assert set(FLAGS) & set(settings_of(ServerConfig)) == set()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ("SmolLM2-135M-Instruct",)),
        ({"model": "a/b"}, ("a/b",)),
        ({"model": "a/b", "served_model_name": ("x", "y", "x")}, ("x", "y")),
    ],
)
def test_served_names(settings: dict[str, Any], names: tuple[str, ...]) -> None:
    assert served_names(ModelSettings(**settings)) == names


def test_every_route_the_ready_block_names_exists() -> None:
    paths = [route.path for route in create_app(InferenceService(ModelManager())).routes if isinstance(route, Route)]
    assert [route for _, route in ROUTES if not any(path.startswith(route) for path in paths)] == []


def test_the_dropped_lines_metric_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = serve._registry(HttpConfig())
    counter = registry.counter(LOG_LINES_DROPPED)
    for dropped in (0, 3, 5):
        monkeypatch.setattr(serve.log, "dropped_lines", lambda dropped=dropped: dropped)
        registry.refresh()
        assert counter.value == dropped


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"architectures": ["NoSuchModel"]}, {}, "NoSuchModel"),
        (None, {}, "neither a config.json nor a .gguf file"),
    ],
)
def test_what_the_config_rules_out_is_told_before_anything_starts(
    config: dict[str, Any] | None, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TriviumError, match=message):
        check_model(ModelSettings(model=str(tmp_path), **settings))


def test_a_hub_name_is_not_fetched_to_be_checked() -> None:
    check_model(ModelSettings(model="nobody/no-such-model"))
    check_model(ModelSettings(model="http://127.0.0.1:9/model.gguf"))


class LostEngine:
    on_give_up: Any = None


async def test_a_server_ends_when_its_engine_is_given_up_and_not_before() -> None:
    loaded: Any = type("Loaded", (), {"engine": LostEngine()})()
    server = asyncio.create_task(asyncio.sleep(60, 0))
    waiting = asyncio.create_task(serve._outlives_engine(server, loaded))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    loaded.engine.on_give_up()
    assert not await waiting
    server.cancel()


async def test_a_server_that_ends_by_itself_outlives_its_engine() -> None:
    loaded: Any = type("Loaded", (), {"engine": LostEngine()})()
    server = asyncio.create_task(asyncio.sleep(0, 0))
    assert await serve._outlives_engine(server, loaded)


def test_ranks_must_divide_the_attention_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
    config |= {"intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 100, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["serve", str(tmp_path), "--tensor-parallel-size", "4"]) == 2
    assert "does not divide the model's 6 attention heads; possible: 1, 2, 3, 6" in capsys.readouterr().err

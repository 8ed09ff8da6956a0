"""Precedence, origins, files, variables, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trivium.config import EngineConfig, ServerConfig
from trivium.config_io import build, build_engine_config, json_schema, resolve, settings_of
from trivium.errors import ConfigError

SETTINGS = settings_of(ServerConfig)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str) -> Path:
        path = tmp_path / "trivium.yaml"
        path.write_text(text)
        return path

    return write_file


def test_flag_beats_variable_beats_file_beats_default(write: Any) -> None:
    file = write("block_size: 8\nmax_num_seqs: 3\nport: 1\n")
    variables = {"TRIVIUM_BLOCK_SIZE": "32", "TRIVIUM_MAX_NUM_SEQS": "4"}
    resolved = resolve(ServerConfig, flags={"block_size": "64"}, variables=variables, file=file)
    assert resolved.config.engine.cache.block_size == 64
    assert resolved.config.engine.scheduler.max_num_seqs == 4
    assert resolved.config.http.port == 1
    assert resolved.config.engine.model.seed == 0
    origins = {name: resolved.origins[name] for name in ("block_size", "max_num_seqs", "port", "seed")}
    assert origins == {"block_size": "flag", "max_num_seqs": "TRIVIUM_MAX_NUM_SEQS", "port": f"{file}:3", "seed": "default"}


def test_nothing_given_is_the_default_config() -> None:
    resolved = resolve(ServerConfig)
    assert resolved.config == ServerConfig()
    assert set(resolved.origins.values()) == {"default"}
    assert list(resolved.origins) == list(SETTINGS)


def test_an_empty_variable_counts_as_unset() -> None:
    assert resolve(ServerConfig, variables={"TRIVIUM_MODEL": ""}).origins["model"] == "default"


def test_value_reads_any_setting_by_its_flat_name() -> None:
    resolved = resolve(ServerConfig, flags={"tensor_parallel_size": "2"})
    assert resolved.value("tensor_parallel_size") == 2
    assert resolved.value("device") == "auto"


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"flags": {"block_size": "33"}}, r"power of two from 8 to 256, got 33 \(from flag --block-size\)"),
        ({"variables": {"TRIVIUM_BLOCK_SIZE": "33"}}, r"got 33 \(from TRIVIUM_BLOCK_SIZE\)"),
        ({"variables": {"TRIVIUM_PORT": "http"}}, r"port: 'http' is not a whole number.* \(from TRIVIUM_PORT\)"),
        ({"flags": {"port": "x"}}, r"\(from flag --port\)"),
        ({"variables": {"TRIVIUM_BLOK_SIZE": "8"}}, "TRIVIUM_BLOK_SIZE is not a setting; did you mean TRIVIUM_BLOCK_SIZE?"),
        ({"flags": {"trust_remote_code": "true"}}, "never runs code that comes with a model"),
    ],
)
def test_a_wrong_setting_is_named_with_its_origin(sources: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(ServerConfig, **sources)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRIVIUM_PORT", "tcp://10.0.0.1:8000"),
        ("TRIVIUM_SERVICE_HOST", "10.0.0.1"),
        ("TRIVIUM_SERVICE_PORT_HTTP", "8000"),
        ("TRIVIUM_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("TRIVIUM_CHAT_PORT", "tcp://10.0.0.1:80"),
    ],
)
def test_variables_that_kubernetes_sets_for_a_service_called_trivium_are_no_settings(name: str, value: str) -> None:
    assert resolve(ServerConfig, variables={name: value}).config == ServerConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blok_size: 8", r"trivium.yaml:1: blok_size is not a setting; did you mean block_size\?"),
        ("\nport: 1\nport: 2", "trivium.yaml:3: port was already set at .*:2"),
        ("port: 1\nblock-size: 8\nblock_size: 8", "trivium.yaml:3: block_size was already set"),
        ("port: many", "trivium.yaml:1: port: 'many' is not a whole number"),
        ("seed: 1\nblock_size: 33", r"block_size must be .*trivium.yaml:2"),
        ("- a", "trivium.yaml:1: a config file is a mapping"),
        ("a: [", "trivium.yaml:1: "),
        ("model: !!python/object:os.system x", "trivium.yaml:1: model: could not determine a constructor"),
        ("model: *x", "trivium.yaml:1: "),
        ("a\x00b: 1", "trivium.yaml"),
    ],
)
def test_a_faulty_file_is_told_with_its_line(write: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(ServerConfig, file=write(text))


def test_files_take_vllms_spelling_sizes_lists_and_mappings(write: Any) -> None:
    text = "max-model-len: 32k\nserved_model_name: [a, b]\napi-key: secret\noverride_generation_config:\n  temperature: 0.5\nrevision: null\n"
    config = resolve(ServerConfig, file=write(text)).config
    assert config.engine.model.max_model_len == 32_000
    assert config.engine.model.served_model_name == ("a", "b")
    assert config.http.api_key == ("secret",)
    assert config.engine.model.override_generation_config == {"temperature": 0.5}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(write: Any, text: str) -> None:
    assert resolve(ServerConfig, file=write(text)).config == ServerConfig()


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read .*none.yaml: No such file or directory$"):
        resolve(ServerConfig, file=tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="can't read .*binary"):
        resolve(ServerConfig, file=tmp_path / "binary")
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than"):
        resolve(ServerConfig, file=tmp_path / "large")


def test_keyword_arguments_make_an_engine_config() -> None:
    config = build_engine_config(model="m", tensor_parallel_size=1, gpu_memory_utilization=0.9, max_model_len="4k", enforce_eager=True)
    assert isinstance(config, EngineConfig)
    assert (config.model.model, config.cache.gpu_memory_utilization, config.model.max_model_len, config.enforce_eager) == ("m", 0.9, 4000, True)


def test_unknown_keyword_arguments_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"max_modl_len is not a setting; did you mean max_model_len\?") as caught:
        build_engine_config(max_modl_len=1)
    assert caught.value.param == "max_modl_len"
    with pytest.raises(ConfigError, match="block_size must be"):
        build(EngineConfig, {"block_size": 33})


def test_every_setting_is_documented_and_has_a_flag_of_its_own() -> None:
    assert [name for name, setting in SETTINGS.items() if not setting.doc.endswith((".", ")", "…"))] == []
    assert len({setting.flag for setting in SETTINGS.values()}) == len(SETTINGS)
    assert all(setting.section.endswith((".", ":")) or setting.section for setting in SETTINGS.values())


def test_names_that_hold_secrets_are_marked_so() -> None:
    named = {name for name in SETTINGS if any(word in name for word in ("key", "secret", "password"))}
    assert named == {name for name, setting in SETTINGS.items() if setting.is_secret}


def test_the_schema_accepts_what_the_reader_accepts() -> None:
    schema = json_schema(ServerConfig)
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    good = yaml.safe_load("max_model_len: 32k\ndtype: auto\nserved_model_name: a\nenforce_eager: true\nrevision: null\n")
    jsonschema.validate(good, schema)
    for bad in ({"nope": 1}, {"dtype": "int8"}, {"enforce_eager": "yes"}, {"block_size": None}, {"max_model_len": "many"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)
    jsonschema.validate({name: entry["default"] for name, entry in schema["properties"].items()}, schema)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else json.dumps(value) if isinstance(value, dict) else str(value)


@given(st.sampled_from(sorted(SETTINGS)))
def test_each_default_survives_the_way_through_text(name: str) -> None:
    default = SETTINGS[name].default
    if default in ("", (), False, None):
        return
    assert resolve(ServerConfig, flags={name: _text(default)}).value(name) == default


def test_valid_settings_of_the_whole_are_left_unused_and_wrong_ones_are_not(tmp_path: Path) -> None:
    file = tmp_path / "trivium.yaml"
    file.write_text("host: 127.0.0.1\nseed: 3\n")
    resolved = resolve(EngineConfig, variables={"TRIVIUM_PORT": "9", "TRIVIUM_DEVICE": "cpu"}, file=file, within=ServerConfig)
    assert (resolved.config.model.seed, resolved.config.device) == (3, "cpu")
    for variables in ({"TRIVIUM_PORT": "http"}, {"TRIVIUM_PROT": "9"}):
        with pytest.raises(ConfigError, match="TRIVIUM_P"):
            resolve(EngineConfig, variables=variables, within=ServerConfig)


@pytest.mark.parametrize("flag", ["max_model_len", "num_threads", "hang_timeout_s", "max_logprobs"])
def test_values_that_no_engine_could_use_are_refused_before_one_is_asked(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} must be"):
        resolve(ServerConfig, flags={flag: "-5"})

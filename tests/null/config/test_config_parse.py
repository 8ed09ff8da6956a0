"""Text and typed values to settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trivium.config import ServerConfig
from trivium.config_io import check_value, parse_text, settings_of
from trivium.config_io.parse import parse_int
from trivium.errors import ConfigError

SETTINGS = settings_of(ServerConfig)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25_600),
        ("32K", 32_768),
        ("1m", 10**6),
        ("1M", 2**20),
        ("2G", 2**31),
        ("2GiB", 2**31),
        ("1.5GiB", 3 * 2**29),
        ("1g", 10**9),
        ("-1", -1),
        ("1_000", 1000),
        (" 7 ", 7),
    ],
)
def test_whole_numbers_with_vllms_suffixes(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.5K", "1.0001k", "1kk", "1e3", "0x10", "nan", "٣", "1 k", "1kiB", "1KB", "1.0001KiB"])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_int(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "32k", 32_000),
        ("max_model_len", "none", None),
        ("gpu_memory_utilization", "0.5", 0.5),
        ("enable_prefix_caching", "off", False),
        ("enable_prefix_caching", "TRUE", True),
        ("dtype", "bfloat16", "bfloat16"),
        ("served_model_name", "a, b,,c", ("a", "b", "c")),
        ("override_generation_config", '{"temperature": 0.5}', {"temperature": 0.5}),
        ("chat_template", "{{ x }}", "{{ x }}"),
        ("batch_invariant", "1", True),
    ],
)
def test_text_is_parsed_by_the_fields_type(name: str, text: str, value: Any) -> None:
    assert parse_text(SETTINGS[name], text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("max_model_len", "many", "max_model_len: 'many' is not a whole number"),
        ("api_key", "", "api_key must not be empty"),
        ("api_key", "a,,b", "api_key must not be empty"),
        ("attention_backend", "nope", "attention_backend: must be one of auto, triton, flash, cpu, reference"),
        ("block_size", "none", "block_size: 'none' is not a whole number"),
        ("gpu_memory_utilization", "most", "gpu_memory_utilization: could not convert"),
        ("enable_prefix_caching", "maybe", "neither true nor false"),
        ("dtype", "int8", "must be one of auto, float32, bfloat16, float16, got 'int8'"),
        ("override_generation_config", "{", "is not JSON"),
        ("override_generation_config", "[1]", "is not a JSON object"),
    ],
)
def test_wrong_text_names_the_setting(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace("[", r"\[")) as caught:
        parse_text(SETTINGS[name], text)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("max_model_len", 4096, 4096),
        ("max_model_len", "32k", 32_000),
        ("max_model_len", None, None),
        ("gpu_memory_utilization", 1, 1.0),
        ("served_model_name", "a", ("a",)),
        ("served_model_name", ["a", "b"], ("a", "b")),
        ("model", Path("/m"), "/m"),
        ("override_generation_config", {"top_p": 1}, {"top_p": 1}),
        ("enforce_eager", True, True),
        ("dtype", "auto", "auto"),
    ],
)
def test_typed_values_become_the_fields_type(name: str, given: object, value: Any) -> None:
    result = check_value(SETTINGS[name], given)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("max_model_len", 4096.0),
        ("max_model_len", True),
        ("max_model_len", [1]),
        ("block_size", None),
        ("enforce_eager", 1),
        ("enforce_eager", "true"),
        ("dtype", "int8"),
        ("dtype", None),
        ("served_model_name", [1]),
        ("served_model_name", 5),
        ("model", 5),
        ("gpu_memory_utilization", "0.5"),
        ("override_generation_config", "x"),
    ],
)
def test_values_of_a_wrong_type_are_refused(name: str, given: object) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        check_value(SETTINGS[name], given)
    assert caught.value.param == name

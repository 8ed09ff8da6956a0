"""text-generation-launcher's flags and variables: what each one becomes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trivium.cli import launcher
from trivium.cli.main import main
from trivium.cli.tgi_flags import BY_NAME, DEFAULTS, FLAGS, translate
from trivium.config import ServerConfig
from trivium.config_io import settings_of
from trivium.errors import ConfigError

EFFECTS: list[tuple[list[str], Callable[[ServerConfig], Any], Any]] = [
    (["--model-id", "some/model"], lambda c: c.engine.model.model, "some/model"),
    (["--model-id", "some/model"], lambda c: c.engine.model.served_model_name, ("some/model", "tgi")),
    (["--revision", "refs/pr/1"], lambda c: c.engine.model.revision, "refs/pr/1"),
    (["--validation-workers", "3"], lambda c: c.engine.model.tokenizer_threads, 3),
    (["--sharded", "false", "--num-shard", "4"], lambda c: c.engine.parallel.tensor_parallel_size, 1),
    (["--num-shard", "2"], lambda c: c.engine.parallel.tensor_parallel_size, 2),
    (["--quantize", "awq"], lambda c: c.engine.model.quantization, "awq"),
    (["--quantize", "bitsandbytes-nf4", "--dtype", "float16"], lambda c: c.engine.model.quantization, "bitsandbytes-nf4"),
    (["--dtype", "float16"], lambda c: c.engine.model.dtype, "float16"),
    (["--kv-cache-dtype", "fp8_e4m3fn"], lambda c: c.engine.cache.kv_cache_dtype, "fp8"),
    (["--kv-cache-dtype", "auto"], lambda c: c.engine.cache.kv_cache_dtype, "auto"),
    (["--max-concurrent-requests", "99"], lambda c: c.http.max_concurrent_requests, 99),
    (["--max-best-of", "7"], lambda c: c.http.tgi.max_best_of, 7),
    (["--max-stop-sequences", "9"], lambda c: c.http.tgi.max_stop_sequences, 9),
    (["--max-top-n-tokens", "8"], lambda c: c.http.tgi.max_top_n_tokens, 8),
    (["--max-input-tokens", "100"], lambda c: c.http.tgi.max_input_tokens, 100),
    (["--max-input-length", "100"], lambda c: c.http.tgi.max_input_tokens, 100),
    (["--max-total-tokens", "4096"], lambda c: c.engine.model.max_model_len, 4096),
    (["--max-batch-prefill-tokens", "4096"], lambda c: c.engine.scheduler.max_num_batched_tokens, 4096),
    (["--max-batch-total-tokens", "8001"], lambda c: c.engine.cache.num_gpu_blocks_override, 501),
    (["--max-batch-size", "32"], lambda c: c.engine.scheduler.max_num_seqs, 32),
    (["--cuda-graphs", "0"], lambda c: c.engine.enforce_eager, True),
    (["--cuda-graphs", "1,2,4,8"], lambda c: c.engine.enforce_eager, False),
    (["--prometheus-port", "9000"], lambda c: c.grpc.metrics_port, 9000),
    (["--hostname", "127.0.0.2"], lambda c: c.http.host, "127.0.0.2"),
    (["-p", "0"], lambda c: c.http.port, 0),
    (["--disable-custom-kernels"], lambda c: c.engine.attention_backend, "reference"),
    (["--cuda-memory-fraction", "0.5"], lambda c: c.engine.cache.gpu_memory_utilization, 0.5),
    (["--cors-allow-origin", "https://a", "--cors-allow-origin", "https://b"], lambda c: c.http.allowed_origins, ("https://a", "https://b")),
    (["--api-key", "secret"], lambda c: c.http.api_key, ("secret",)),
    (["--max-client-batch-size", "16"], lambda c: c.http.tgi.max_client_batch_size, 16),
    (["--disable-grammar-support"], lambda c: c.http.tgi.disable_grammar_support, True),
    (["--payload-limit", "1000"], lambda c: c.http.max_body_bytes, 1000),
    (["--graceful-termination-timeout", "7"], lambda c: c.http.drain_timeout_s, 7.0),
    (["-g", "7"], lambda c: c.http.drain_timeout_s, 7.0),
    # TGI's defaults
    ([], lambda c: c.http.port, 0),
    ([], lambda c: c.http.drain_timeout_s, 90.0),
    ([], lambda c: c.http.allowed_origins, ("*",)),
    ([], lambda c: (c.http.ignore_unknown_fields, c.http.ignore_unknown_models), (True, True)),
    ([], lambda c: c.http.metrics_names, ("vllm", "tgi")),
    ([], lambda c: c.http.tgi.max_client_batch_size, 4),
    ([], lambda c: c.engine.parallel.tensor_parallel_size, 1),
    # Trivium's own
    (["--fairness-header", "x-user"], lambda c: c.http.fairness_header, "x-user"),
    (["--queue-timeout-s", "5"], lambda c: c.http.queue_timeout_s, 5.0),
    (["--metrics-names", "tgi"], lambda c: c.http.metrics_names, ("tgi",)),
    (["--served-model-name", "other"], lambda c: c.engine.model.served_model_name, ("other",)),
]
WITHOUT_EFFECT = [
    *(["--waiting-served-ratio", "1.2"], ["--max-waiting-tokens", "20"], ["--shard-uds-path", "/tmp/x"]),
    *(["--master-port", "29500"], ["--master-addr", "localhost"], ["--usage-stats", "off"], ["--enable-prefill-logprobs"], ["--speculate", "0"]),
    *(["--lora-adapters", ""], ["--json-output"], ["--huggingface-hub-cache", "/tmp/cache"], ["--env"]),
]
REFUSED = [
    *(["--trust-remote-code"], ["--speculate", "2"], ["--quantize", "exl2"], ["--kv-cache-dtype", "fp8_e5m2"], ["--master-addr", "10.0.0.1"]),
    *(["--weights-cache-override", "/x"], ["--rope-scaling", "dynamic"], ["--rope-factor", "2.0"], ["--otlp-endpoint", "http://x"]),
    *(["--otlp-service-name", "x"], ["--watermark-gamma", "0.5"], ["--watermark-delta", "2.0"], ["--ngrok"], ["--ngrok-authtoken", "x"]),
    *(["--ngrok-edge", "x"], ["--lora-adapters", "a/b"], ["--usage-stats", "maybe"], ["--max-image-fetch-size", "1"]),
    *(["--num-shard", "0"], ["--num-shard", "x"], ["--sharded", "true"], ["--sharded", "maybe"], ["--cuda-graphs", "many"]),
    *(["--max-batch-size", "0"], ["--max-total-tokens", "0"], ["--port", "70000"], ["--quantize", "unheard-of"], ["--dtype", "int8"]),
    *(["--max-input-tokens", "5", "--max-input-length", "5"], ["--max-input-tokens", "9", "--max-total-tokens", "9"]),
    *(["--max-total-tokens", "9", "--max-batch-total-tokens", "8"], ["--max-batch-prefill-tokens", "9", "--max-batch-total-tokens", "8"]),
    *(["--dtype", "float16", "--quantize", "awq"], ["--validation-workers", "0"], ["--tokenizer-config-path", "/no/such/file"]),
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """Configs that would have been served; nothing is."""
    configs: list[ServerConfig] = []

    async def run(config: ServerConfig, sock: socket.socket) -> int:
        configs.append(config)
        sock.close()
        return 0

    monkeypatch.setattr(launcher, "run", run)
    monkeypatch.setattr(launcher, "check_model", lambda settings, **_: None)
    monkeypatch.setattr(launcher.log, "setup", lambda: None)
    monkeypatch.setattr(launcher, "_report", lambda: None)
    for name in {flag.variable for flag in FLAGS} | {"LOG_LEVEL", "COMPUTE_TYPE", "PREFIX_CACHING", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}:
        monkeypatch.delenv(name, raising=False)
    for name in ("HF_HUB_CACHE", "TRIVIUM_LOG_FORMAT", "TRIVIUM_LOG_LEVEL", "HF_TOKEN"):
        # Set and taken away again, so that what the launcher sets is undone.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRIVIUM_PORT", "0")
    monkeypatch.setenv("TRIVIUM_HOST", "127.0.0.1")
    return configs


@pytest.mark.parametrize(("args", "value", "expected"), EFFECTS)
def test_effects(args: list[str], value: Callable[[ServerConfig], Any], expected: Any, started: list[ServerConfig]) -> None:
    assert main(["launcher", *args]) == 0
    assert value(started[0]) == expected


@pytest.mark.parametrize(("args", "value", "expected"), [case for case in EFFECTS if case[0] and case[0][0] != "-g" and len(case[0]) == 2])
def test_effects_of_variables(
    args: list[str], value: Callable[[ServerConfig], Any], expected: Any, started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"-p": "port"}.get(args[0], args[0].removeprefix("--").replace("-", "_"))
    if name not in BY_NAME:
        name = f"TRIVIUM_{name}"
    monkeypatch.setenv(name.upper(), args[1])
    assert main(["launcher"]) == 0
    assert value(started[0]) == expected


@pytest.mark.parametrize("args", WITHOUT_EFFECT)
def test_flags_that_ask_for_what_happens_anyway(args: list[str], started: list[ServerConfig]) -> None:
    assert main(["launcher"]) == main(["launcher", *args]) == 0
    assert started[0] == started[1]


@pytest.mark.parametrize("args", REFUSED)
def test_flags_that_are_refused_by_name(args: list[str], started: list[ServerConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launcher", *args]) == 2
    message = capsys.readouterr().err
    assert args[-2 if len(args) > 1 else -1] in message or args[0] in message or "trust_remote_code" in message
    assert started == []


def test_every_flag_has_a_case() -> None:
    cases = [*(args for args, *_ in EFFECTS), *WITHOUT_EFFECT, *REFUSED]
    named = {word for args in cases for word in args if word.startswith("--")} | {"--port", "--tokenizer-config-path"}
    assert {flag.flag for flag in FLAGS} <= named


def test_each_setting_exists() -> None:
    known = settings_of(ServerConfig)
    assert {flag.setting for flag in FLAGS if flag.setting} | set(DEFAULTS) <= set(known)
    assert all((flag.setting, flag.note, flag.refusal) != (None, None, None) or flag.is_special for flag in FLAGS)


def test_the_default_port_is_tgis(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIVIUM_PORT")
    monkeypatch.setattr(launcher, "bind", lambda config: socket.socket())
    assert main(["launcher"]) == 0
    assert started[0].http.port == 3000


def test_flags_come_before_variables_and_tgis_variables_before_triviums(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("TRIVIUM_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("TRIVIUM_DRAIN_TIMEOUT_S", "3")
    assert main(["launcher", "--max-batch-size", "16"]) == main(["launcher"]) == 0
    assert [config.engine.scheduler.max_num_seqs for config in started] == [16, 8]
    assert started[0].http.drain_timeout_s == 3


def test_tgis_flag_is_named_where_a_value_is_wrong(started: list[ServerConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launcher", "--max-batch-size", "0"]) == 2
    assert "from flag --max-batch-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "args", "shards"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [], 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["--sharded", "true"], 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ["--sharded", "false"], 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ["--num-shard", "2"], 2),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, [], 2),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [], 1),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, [], 1),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [], None),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], 1),
    ],
)
def test_visible_gpus_are_counted(
    variables: dict[str, str], args: list[str], shards: int | None, started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["launcher", *args]) == 0
    expected = max(1, len(list(Path("/dev").glob("nvidia[0-9]*")))) if shards is None else shards
    assert started[0].engine.parallel.tensor_parallel_size == expected


def test_the_systems_own_host_name_is_no_address_to_listen_on(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", socket.gethostname())
    assert main(["launcher"]) == 0
    assert started[0].http.host == "127.0.0.1"


def test_variables_that_are_no_flags(started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"COMPUTE_TYPE": "cpu", "PREFIX_CACHING": "0", "LOG_LEVEL": "warn", "HUGGING_FACE_HUB_TOKEN": "hf_x", "HUGGINGFACE_HUB_CACHE": "/c"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert main(["launcher", "--json-output"]) == 0
    assert started[0].http.tgi.compute_type == "cpu"
    assert not started[0].engine.cache.enable_prefix_caching
    assert {name: os.environ.get(name) for name in ("HF_TOKEN", "HF_HUB_CACHE", "TRIVIUM_LOG_LEVEL", "TRIVIUM_LOG_FORMAT")} == {
        "HF_TOKEN": "hf_x",
        "HF_HUB_CACHE": "/c",
        "TRIVIUM_LOG_LEVEL": "warning",
        "TRIVIUM_LOG_FORMAT": "json",
    }


@pytest.mark.parametrize(
    ("template", "found"),
    [("{{ x }}", "{{ x }}"), ([{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}], "b"), (None, None), ([1], None)],
)
def test_the_chat_template_of_a_tokenizer_config(template: Any, found: str | None, started: list[ServerConfig], tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"chat_template": template}))
    code = main(["launcher", "--tokenizer-config-path", str(file)])
    assert code == (0 if found else 2)
    assert not found or started[0].engine.model.chat_template == found


def test_nothing_given_means_nothing() -> None:
    meaning = translate({}, num_visible=lambda: None, block_size=16)
    assert (meaning.settings, meaning.environment, meaning.notes) == ({}, {}, ())
    assert translate({"max_batch_size": ""}, num_visible=lambda: None, block_size=16).settings == {}
    with pytest.raises(ConfigError, match="needs more than one GPU"):
        translate({"sharded": "true"}, num_visible=lambda: 1, block_size=16)

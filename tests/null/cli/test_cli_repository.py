"""`trivium init`, tritonserver's flags, and settings that are little languages."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from trivium.batching.model_metrics import MetricsOptions
from trivium.cli.announce import Ports, ready_models, repository_block, warnings_about
from trivium.cli.main import main
from trivium.cli.model_bars import ModelBars
from trivium.cli.repository import share_gpu
from trivium.cli.repository_settings import backend_settings, default_max_batch_size, metrics_options, resource_limits, response_cache
from trivium.cli.triton_flags import translate
from trivium.config import CacheConfig, EngineConfig, HttpConfig, RepositoryConfig, ServerConfig
from trivium.errors import ConfigError
from trivium.repository.check import check_repository
from trivium.repository.entry import IndexEntry
from trivium.repository.plan import PlanOptions
from trivium.sources import packaged

ONNX = b"\x3a\x01x"
"""The outline of an ONNX file: a graph."""
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)

BOOLEANS = {"--exit-on-error", "--no-exit-on-error", "--disable-auto-complete-config", "--no-disable-auto-complete-config"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--model-store=/m"], ["--model-repository=/m"]),
        (["--model-store", "/m"], ["--model-repository", "/m"]),
        (["--http-port", "80", "--http-address=::1"], ["--port", "80", "--host=::1"]),
        (["--exit-timeout-secs=5"], ["--drain-timeout-s=5"]),
        (["--exit-on-error=false"], ["--no-exit-on-error"]),
        (["--exit-on-error", "false", "model"], ["--no-exit-on-error", "model"]),
        (["--exit_on_error=0"], ["--no-exit-on-error"]),
        (["--exit-on-error"], ["--exit-on-error"]),
        (["--no-exit-on-error=true"], ["--no-exit-on-error"]),
        (["--no-exit-on-error=false"], ["--exit-on-error"]),
        (["--strict-model-config=true"], ["--disable-auto-complete-config"]),
        (["--strict-model-config", "false"], ["--no-disable-auto-complete-config"]),
        (["--allow-http=true", "--log-verbose=0", "--model-namespacing=false"], []),
        (["--grpc-infer-response-compression-level=medium"], ["--grpc-compression", "gzip"]),
        (["--grpc-infer-response-compression-level", "none"], ["--grpc-compression", "none"]),
        (["--host=1.2.3.4", "--grpc-address=1.2.3.4"], ["--host=1.2.3.4"]),
        (["--grpc-address", "0.0.0.0"], []),
        (["--", "--model-store"], ["--", "--model-store"]),
        (["--port=1", "x"], ["--port=1", "x"]),
    ],
)
def test_tritons_flags_are_understood(given: list[str], expected: list[str]) -> None:
    assert translate(given, BOOLEANS) == expected


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--allow-http=false"], "the HTTP port is always open"),
        (["--model-namespacing=true"], "unique among all repositories"),
        (["--log-verbose=1"], "TRIVIUM_LOG_LEVEL=debug"),
        (["--backend-directory=/b"], "back ends are Python packages"),
        (["--exit-on-error=maybe"], "must be true or false"),
        (["--grpc-address=1.2.3.4"], "all ports are on one address"),
        (["--allow-http"], "needs a value"),
        (["--grpc-infer-response-compression-level=much"], "none, low, medium or high"),
    ],
)
def test_what_trivium_cannot_do_is_refused_by_name(given: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        translate(given, BOOLEANS)


def test_back_end_settings_may_come_in_one_list_or_in_several() -> None:
    several = backend_settings(["onnxruntime,default-max-batch-size=8", "python,shm=1", "default-max-batch-size=2"])
    assert several == backend_settings(["onnxruntime", "default-max-batch-size=8", "python", "shm=1", "default-max-batch-size=2"])
    assert several == {"onnxruntime": {"default-max-batch-size": "8"}, "python": {"shm": "1"}, "": {"default-max-batch-size": "2"}}
    assert default_max_batch_size(several, "onnxruntime") == 8 and default_max_batch_size(several, "fil") == 2
    assert default_max_batch_size({}, "fil") == 4
    for wrong in (["onnxruntime"], ["a,b"], ["nosuch,k=v"]):
        with pytest.raises(ConfigError, match="backend_config"):
            backend_settings(wrong)
    with pytest.raises(ConfigError, match="whole number"):
        default_max_batch_size({"": {"default-max-batch-size": "x"}}, "fil")


def test_resources_caches_and_metrics() -> None:
    assert resource_limits(["R1:4", "R2:2:1"]) == {("R1", None): 4, ("R2", 1): 2}
    assert response_cache([]) is None
    cache = response_cache(["local", "size=1024"])
    assert cache is not None and cache.byte_limit == 1024
    assert metrics_options([]) == MetricsOptions()
    found = metrics_options(
        ["summary_latencies=true,counter_latencies=false", "summary_quantiles=0.5:0.05", "0.99:0.001", "histogram_latencies=true"]
    )
    assert found == MetricsOptions(counter_latencies=False, summary_latencies=True, histogram_latencies=True, summary_quantiles=(0.5, 0.99))


def test_engines_that_start_together_share_a_gpu() -> None:
    default = EngineConfig()
    assert share_gpu(default, 1) is default and share_gpu(default, 4).cache.gpu_memory_utilization == 0.23
    given = EngineConfig(cache=CacheConfig(gpu_memory_utilization=0.3))
    assert share_gpu(given, 4) is given


@pytest.mark.parametrize("wrong", ["R1", "R1:x", ":3", "R1:1:x", "R1:1:1:1"])
def test_wrong_resources_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="rate_limit_resource"):
        resource_limits([wrong])


@pytest.mark.parametrize("wrong", ["redis,size=1", "local", "local,size=x", "local,size=1,host=h"])
def test_wrong_caches_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="cache_config"):
        response_cache([wrong])


@pytest.mark.parametrize("wrong", ["counter_latencies=1", "nosuch=true", "summary_quantiles=2", "summary_quantiles=x"])
def test_wrong_metrics_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="metrics_config"):
        metrics_options([wrong])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"load_model": ("m",)}, "load_model needs a model_repository"),
        ({"model_control_mode": "poll"}, "model_control_mode needs a model_repository"),
        ({"cache_config": ("local,size=1",)}, "cache_config needs a model_repository"),
        ({"model_repository": ("m",), "load_model": ("m",)}, "load_model needs model_control_mode explicit"),
        ({"model_repository": ("m",), "rate_limit_resource": ("R:1",)}, "needs rate_limit execution_count"),
        ({"model_repository": ("m",), "repository_poll_secs": 0.0}, "greater than 0"),
        ({"model_repository": ("m",), "model_load_thread_count": 0}, "at least 1"),
        ({"model_repository": ("m",), "model_load_retry_count": -1}, "not be negative"),
        ({"model_repository": ("m",), "model_config_name": "a/b"}, "without its ending"),
    ],
)
def test_settings_that_ask_for_nothing_are_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RepositoryConfig(**given)  # type: ignore[arg-type]


# -- trivium init -----------------------------------------------------------------------------------------------------------------


def init(*words: object) -> int:
    return main(["init", *map(str, words)])


def test_each_kind_writes_a_layout_that_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "encoder.onnx"
    file.write_bytes(ONNX)
    (tmp_path / "trees.ubj").write_text("{")
    (tmp_path / "net.pt").write_bytes(EMPTY_ZIP)
    (tmp_path / "exported.pt2").write_bytes(EMPTY_ZIP)
    models = tmp_path / "models"
    assert init("onnx", file, models) == 0
    assert init("forest", tmp_path / "trees.ubj", models, "--name", "trees") == 0
    assert init("torch", tmp_path / "net.pt", models, "--input", "x:FP32:3,224,224", "--output", "y:BYTES:-1") == 0
    assert init("torch", tmp_path / "exported.pt2", models) == 0
    assert init("python", models, "--name", "mine") == 0
    assert init("llm", models) == 0
    assert init("llm", "org/name", models, "--set", "max_model_len=512", "--set", "dtype=float32") == 0
    found = {check.name: (check.backend, check.versions, check.problems) for check in check_repository([models], PlanOptions())}
    assert found == {
        "SmolLM2-135M-Instruct": ("vllm", (1,), ()),
        "encoder": ("onnxruntime", (1,), ()),
        "exported": ("pytorch", (1,), ()),
        "mine": ("python", (1,), ()),
        "name": ("vllm", (1,), ()),
        "net": ("pytorch", (1,), ()),
        "trees": ("fil", (1,), ()),
    }
    assert json.loads((models / "name" / "1" / "model.json").read_text()) == {"model": "org/name", "max_model_len": 512, "dtype": "float32"}
    compile((models / "mine" / "1" / "model.py").read_text(), "model.py", "exec")
    assert f"trivium serve --model-repository {models}" in capsys.readouterr().err


def test_a_name_that_is_there_gets_a_further_version(tmp_path: Path) -> None:
    file = tmp_path / "encoder.onnx"
    file.write_bytes(ONNX)
    assert init("onnx", file, tmp_path / "models") == 0 and init("onnx", file, tmp_path / "models") == 0
    assert (tmp_path / "models" / "encoder" / "2" / "model.onnx").exists()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trees.bin").write_bytes(EMPTY_ZIP)
    (tmp_path / "encoder.onnx").write_bytes(ONNX)
    (tmp_path / "bad.onnx").write_text("x")
    (tmp_path / "bad.ubj").write_text("x")
    for words, reason in [
        (("forest", tmp_path / "trees.bin", tmp_path / "m"), "a forest ends in"),
        (("torch", tmp_path / "trees.bin", tmp_path / "m", "--input", "x:FLOAT:1", "--output", "y:FP32:1"), "NAME:TYPE:DIMS"),
        (("torch", tmp_path / "trees.bin", tmp_path / "m"), "name them with --input and --output"),
        (("torch", tmp_path / "encoder.onnx", tmp_path / "m", "--input", "x:FP32:1", "--output", "y:FP32:1"), "encoder.onnx is no TorchScript model"),
        (("onnx", tmp_path / "bad.onnx", tmp_path / "m"), "bad.onnx is no ONNX model"),
        (("onnx", tmp_path, tmp_path / "m"), "holds no model.onnx"),
        (("forest", tmp_path / "bad.ubj", tmp_path / "m"), "bad.ubj is no XGBoost model"),
        (("python", tmp_path / "m", "--name", "../x"), "Invalid model name"),
        (("llm", "a", "b", "c"), "one model and one folder"),
        (("llm", tmp_path / "m", "--set", "x"), "KEY=VALUE"),
        (("onnx", tmp_path / "nowhere", tmp_path / "m"), "does not exist"),
    ]:
        assert init(*words) == 2
        err = capsys.readouterr().err
        assert reason in err and err.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_an_empty_name_is_the_packaged_model(tmp_path: Path) -> None:
    assert init("llm", "", tmp_path) == 0 and init("llm", "", tmp_path, "--name", "mine") == 0
    for name in (packaged.NAME, "mine"):
        assert json.loads((tmp_path / name / "1" / "model.json").read_text()) == {"model": packaged.NAME}


# -- what the server says when it is ready ----------------------------------------------------------------------------------------


class StubRepository:
    def index(self, *, ready_only: bool) -> list[IndexEntry]:
        lines = [
            IndexEntry(name="bad", state="UNAVAILABLE", reason="bad/config.pbtxt:1: no\nmore"),
            IndexEntry(name="encoder", version="10", state="READY"),
            IndexEntry(name="untouched"),
        ]
        return [line for line in lines if line.state == "READY"] if ready_only else lines


def test_an_open_server_says_what_anybody_may_do() -> None:
    explicit = RepositoryConfig(model_repository=("m",), model_control_mode="explicit", allow_python_models=True)
    assert warnings_about(ServerConfig(http=HttpConfig(api_key=("k",)), repository=explicit)) == []
    assert warnings_about(ServerConfig(http=HttpConfig(host="127.0.0.1"), repository=explicit)) == []
    assert len(warnings_about(ServerConfig())) == 1
    assert "run code with them" in warnings_about(ServerConfig(repository=explicit))[1]


def test_the_ready_block_lists_models_and_leaves_reasons_to_the_log() -> None:
    config = ServerConfig(http=HttpConfig(api_key=("k",)))
    ports = Ports(http=8000, grpc=8001)
    block = repository_block(config, StubRepository(), ports=ports, start_s=1.25, has_heading=True)  # type: ignore[arg-type]
    assert "is ready after 1.2 s: http://localhost:8000" in block and "gRPC        localhost:8001" in block
    assert "  bad      -    UNAVAILABLE\n  encoder  10   READY" in block and "untouched" not in block
    assert "bad/config.pbtxt" not in block and "Why a model can't be served: above" in block
    beside = repository_block(config, StubRepository(), ports=ports, start_s=1.25, has_heading=False)  # type: ignore[arg-type]
    assert beside.startswith("Models of the repository:")


def test_the_ready_record_names_everything_that_answers() -> None:
    assert ready_models(StubRepository(), "org/mod") == ["org/mod", "encoder"]  # type: ignore[arg-type]
    assert ready_models(StubRepository(), "encoder") == ready_models(StubRepository(), "") == ["encoder"]  # type: ignore[arg-type]
    assert ready_models(None, "org/mod") == ["org/mod"]


def test_models_that_load_side_by_side_have_a_bar_each() -> None:
    file = io.StringIO()
    with ModelBars(Console(file=file, force_terminal=True, width=100)) as bars:
        with bars.loading("encoder", 1):
            bars.update("encoder", "reading weights", 1, 2)
        with pytest.raises(ValueError), bars.loading("broken", 1):
            raise ValueError
        with bars.loading("later", 2):
            pass
    text = file.getvalue()
    assert all(word in text for word in ("encoder", "ready", "broken", "failed", "later"))


def test_without_a_terminal_each_stage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with ModelBars(Console(file=io.StringIO())) as bars, bars.loading("encoder", 1):
        for done in range(3):
            bars.update("encoder", "reading weights", done, 3)
    assert [record.getMessage() for record in caplog.records] == ["loading version 1", "reading weights"]

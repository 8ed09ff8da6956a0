"""TGI's metrics, derived from ours."""

from __future__ import annotations

from trivium.metrics import catalogue as c
from trivium.metrics.exposition import Exposition
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics
from trivium.metrics.tgi import DERIVED, tgi_series
from trivium.protocol.messages import EngineReady, EngineStats
from trivium.types import FinishReason


def page(registry: Registry) -> dict[str, float]:
    lines = Exposition(registry).render().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and not line.startswith("#")}


def busy_registry() -> Registry:
    registry = Registry()
    metrics = ModelMetrics(registry, "m")
    metrics.describe_engine(EngineReady(vocab_size=1, max_model_len=1, max_num_seqs=1, num_blocks=100, block_size=16, device="none", dtype="none"))
    metrics.on_stats(EngineStats(num_running=3, num_waiting=2, num_blocks=100, num_free_blocks=75))
    for reason, count in ((FinishReason.STOP, 4), (FinishReason.LENGTH, 2), (FinishReason.ABORT, 1), (FinishReason.ERROR, 5)):
        metrics.success[reason].inc(count)
    for status, count in (("200", 6), ("422", 3), ("400", 1), ("429", 7)):
        registry.counter(c.HTTP_REQUESTS, "POST", "/generate", status).inc(count)
    registry.counter(c.HTTP_REQUESTS, "GET", "/health", "200").inc(50)
    registry.counter(c.ADMISSION_REJECTIONS, "m", "queue_full").inc(7)
    metrics.e2e_latency.observe(0.25)
    metrics.prefill_time.observe(0.1)
    metrics.inter_token_latency.observe(0.01, 3)
    return registry


def test_values() -> None:
    registry = busy_registry()
    registry.names = ("vllm", "tgi")
    found = page(registry)
    assert found["tgi_request_count"] == 17
    assert found['tgi_request_success{model_name="m"}'] == 6
    failures = {"validation": 4, "overloaded": 7, "generation": 5, "dropped": 1}
    assert {err: found[f'tgi_request_failure{{err="{err}"}}'] for err in failures} == failures
    assert found['tgi_request_duration_sum{model_name="m"}'] == 0.25
    assert found['tgi_request_duration_bucket{le="0.3",model_name="m"}'] == 1
    assert found['tgi_batch_inference_duration_count{method="prefill",model_name="m"}'] == 1
    assert found['tgi_batch_inference_duration_count{method="decode",model_name="m"}'] == 3
    assert found['tgi_batch_current_size{model_name="m"}'] == 3
    assert found['tgi_queue_size{model_name="m"}'] == 2
    assert found['tgi_batch_max_total_tokens{model_name="m"}'] == 1600
    assert found['tgi_batch_current_max_tokens{model_name="m"}'] == 400
    assert found['vllm:num_requests_running{engine="0",model_name="m"}'] == 3


def test_names_are_shown_as_asked_for() -> None:
    registry = busy_registry()
    assert not any(name.startswith("tgi_") for name in page(registry))
    registry.names = ("tgi",)
    found = page(registry)
    assert any(name.startswith("tgi_") for name in found)
    assert not any(name.startswith("vllm:") for name in found)
    assert any(name.startswith("http_requests") for name in found)


def test_reading_changes_nothing() -> None:
    registry = busy_registry()
    first, second = page(registry), None
    for _ in range(2):
        tgi_series(registry)
        second = page(registry)
    strip = {name: value for name, value in first.items() if not name.startswith(("process_", "python_"))}
    assert {name: value for name, value in (second or {}).items() if name in strip} == strip


def test_names_are_tgis() -> None:
    assert len({derived.metric.name for derived in DERIVED}) == len(DERIVED)
    assert all(derived.metric.name.startswith("tgi_") for derived in DERIVED)


def test_failures_that_never_happened_read_zero() -> None:
    registry = Registry()
    registry.names = ("tgi",)
    assert page(registry)['tgi_request_failure{err="generation"}'] == 0

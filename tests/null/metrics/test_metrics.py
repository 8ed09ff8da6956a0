"""Catalogue, instruments, clocks and the page they end up on."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trivium.metrics import catalogue as c
from trivium.metrics.exposition import Exposition
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.protocol.messages import EngineReady, EngineStats
from trivium.types import FinishReason


def samples(registry: Registry) -> dict[str, float]:
    text = Exposition(registry).render().decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}


VLLM_CORE = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "num_preemptions", "prompt_tokens"),
    *("prompt_tokens_cached", "generation_tokens", "request_success", "prefix_cache_queries", "prefix_cache_hits", "admission_rejections"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n"),
    *("request_params_max_tokens", "iteration_tokens_total", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
}


def test_the_catalogue_has_vllms_core_names_once_each() -> None:
    names = [metric.name for metric in c.CATALOGUE]
    assert len(names) == len(set(names))
    assert {f"vllm:{name}" for name in VLLM_CORE} <= set(names)


@pytest.mark.parametrize("metric", c.CATALOGUE, ids=lambda metric: metric.name)
def test_each_metric_is_well_formed(metric: c.Metric) -> None:
    assert metric.doc.endswith(".")
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_buckets_tell_tokens_of_a_millisecond_apart() -> None:
    assert sum(0.0005 <= bound <= 0.002 for bound in c.TOKEN_LATENCY_BUCKETS) >= 6
    assert c.TOKEN_COUNT_BUCKETS[:4] == (1, 2, 5, 10)
    assert c.TOKEN_COUNT_BUCKETS[-1] == 2_000_000


def test_the_page_is_what_prometheus_reads() -> None:
    registry = Registry()
    ModelMetrics(registry, 'a "strange"\\name\n')
    families = {family.name: family for family in text_string_to_metric_families(Exposition(registry).render().decode())}
    assert families["vllm:num_requests_running"].type == "gauge"
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert families["vllm:num_requests_running"].samples[0].labels == {"model_name": 'a "strange"\\name\n', "engine": "0"}
    assert "process_cpu_seconds" in families
    assert "python_info" in families


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    registry = Registry()
    histogram = registry.histogram(c.REQUEST_PARAMS_N, "m", "0")
    for value in (0.5, 1.0, 1.5, 2.0, 1000.0):
        histogram.observe(value)
    histogram.observe(5.0, times=3)
    found = samples(registry)
    name = "vllm:request_params_n"
    buckets = [found[f'{name}_bucket{{engine="0",le="{bound}",model_name="m"}}'] for bound in ("1.0", "2.0", "5.0", "100.0", "+Inf")]
    assert buckets == [2, 4, 7, 7, 8]
    assert found[f'{name}_count{{engine="0",model_name="m"}}'] == 8
    assert found[f'{name}_sum{{engine="0",model_name="m"}}'] == 1020


def test_one_series_for_the_same_labels() -> None:
    registry = Registry()
    registry.counter(c.HTTP_REQUESTS, "GET", "/a", "200").inc()
    registry.counter(c.HTTP_REQUESTS, "GET", "/a", "200").inc(2)
    registry.gauge(c.HTTP_IN_FLIGHT).inc()
    assert samples(registry)['http_requests_total{handler="/a",method="GET",status="200"}'] == 3
    with pytest.raises(AssertionError, match="takes labels"):
        registry.counter(c.HTTP_REQUESTS, "GET")


def test_refreshers_run_before_a_reading() -> None:
    registry = Registry()
    registry.refreshers.append(lambda: registry.gauge(c.HTTP_IN_FLIGHT).set(7))
    registry.refresh()
    assert samples(registry)["http_requests_in_flight"] == 7


def test_rendering_while_series_are_added_and_moved() -> None:
    registry = Registry()
    exposition = Exposition(registry)
    pages: list[bytes] = []
    thread = threading.Thread(target=lambda: pages.extend(exposition.render() for _ in range(3)))
    thread.start()
    number = 0
    while thread.is_alive():
        number += 1
        registry.counter(c.HTTP_REQUESTS, "GET", f"/{number % 40}", "200").inc()
        registry.histogram(c.HTTP_DURATION, "GET", f"/{number % 40}").observe(0.01)
    thread.join()
    assert len(pages) == 3
    assert list(text_string_to_metric_families(pages[-1].decode()))


# -- the engine's figures -----------------------------------------------------------------------------------------------------------


def value(registry: Registry, name: str, labels: str = 'engine="0",model_name="m"') -> float:
    return samples(registry)[f"{name}{{{labels}}}"]


def test_gauges_are_as_reported_and_counters_grow() -> None:
    registry = Registry()
    metrics = ModelMetrics(registry, "m")
    stats = {"num_running": 3, "num_waiting": 2, "num_blocks": 10, "num_free_blocks": 4, "num_steps": 5, "step_tokens": [7, 9]}
    counts = {"num_preemptions": 1, "prefix_queries": 20, "prefix_hits": 16, "prompt_tokens": 30, "generation_tokens": 40}
    metrics.on_stats(EngineStats(**stats, **counts))
    metrics.on_stats(EngineStats(**{**stats, "num_steps": 6, "step_tokens": [1]}, **{name: count + 1 for name, count in counts.items()}))
    assert value(registry, "vllm:num_requests_running") == 3
    assert value(registry, "vllm:num_requests_waiting") == 2
    assert value(registry, "vllm:kv_cache_usage_perc") == pytest.approx(0.6)
    assert value(registry, "vllm:num_preemptions_total") == 2
    assert value(registry, "vllm:prefix_cache_queries_total") == 21
    assert value(registry, "vllm:prefix_cache_hits_total") == 17
    assert value(registry, "vllm:prompt_tokens_total") == 31
    assert value(registry, "vllm:generation_tokens_total") == 41
    assert value(registry, "vllm:iteration_tokens_total_sum") == 17
    assert value(registry, "vllm:iteration_tokens_total_count") == 3


def test_counters_go_on_when_the_engine_restarts() -> None:
    registry = Registry()
    metrics = ModelMetrics(registry, "m")
    metrics.on_stats(EngineStats(generation_tokens=100, num_steps=50))
    metrics.on_stats(EngineStats(generation_tokens=5, num_steps=2))
    assert value(registry, "vllm:generation_tokens_total") == 105


def test_a_dead_engine_runs_nothing() -> None:
    registry = Registry()
    metrics = ModelMetrics(registry, "m")
    metrics.on_stats(EngineStats(num_running=3, num_waiting=2, num_blocks=2, num_free_blocks=1))
    metrics.set_engine_up(is_up=True)
    assert value(registry, "trivium:engine_up") == 1
    metrics.set_engine_up(is_up=False)
    for name in ("trivium:engine_up", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert value(registry, name) == 0


def test_cache_config() -> None:
    registry = Registry()
    ready = EngineReady(vocab_size=1, max_model_len=1, max_num_seqs=1, num_blocks=77, block_size=16, device="cpu", dtype="bfloat16")
    ModelMetrics(registry, "m").describe_engine(ready)
    labels = 'block_size="16",cache_dtype="bfloat16",engine="0",model_name="m",num_gpu_blocks="77"'
    assert value(registry, "vllm:cache_config_info", labels) == 1


# -- the clock ----------------------------------------------------------------------------------------------------------------------


def sums(registry: Registry) -> dict[str, tuple[float, float]]:
    """Count and sum of each histogram that moved."""
    found = samples(registry)
    names = [metric.name for metric in c.CATALOGUE if metric.kind == "histogram" and f'{metric.name}_count{{engine="0",model_name="m"}}' in found]
    pairs = {name: (value(registry, f"{name}_count"), value(registry, f"{name}_sum")) for name in names}
    return {name.removeprefix("vllm:"): pair for name, pair in pairs.items() if pair[0]}


def test_the_times_of_one_sequence() -> None:
    registry = Registry()
    clock = SequenceClock(ModelMetrics(registry, "m"), arrived_at=100.0)
    clock.on_scheduled(101.0)
    clock.on_tokens(1, 103.0)
    clock.on_tokens(2, 104.0)
    clock.on_finish(FinishReason.LENGTH, now=104.0, num_prompt_tokens=20, num_cached_tokens=16, num_preemptions=0)
    expected = {
        "time_to_first_token_seconds": (1, 3.0),
        "inter_token_latency_seconds": (2, 1.0),
        "request_time_per_output_token_seconds": (1, 0.5),
        "e2e_request_latency_seconds": (1, 4.0),
        "request_queue_time_seconds": (1, 1.0),
        "request_prefill_time_seconds": (1, 2.0),
        "request_decode_time_seconds": (1, 1.0),
        "request_inference_time_seconds": (1, 3.0),
        "request_prompt_tokens": (1, 20),
        "request_generation_tokens": (1, 3),
        "request_num_preemptions": (1, 0),
        "request_prefill_kv_computed_tokens": (1, 4),
    }
    assert sums(registry) == {name: (count, pytest.approx(total)) for name, (count, total) in expected.items()}
    assert value(registry, "vllm:request_success_total", 'engine="0",finished_reason="length",model_name="m"') == 1
    assert value(registry, "vllm:prompt_tokens_cached_total") == 16


def test_a_preemption_moves_queue_prefill_and_decode() -> None:
    registry = Registry()
    clock = SequenceClock(ModelMetrics(registry, "m"), arrived_at=0.0)
    clock.on_scheduled(1.0)
    clock.on_tokens(1, 2.0)
    clock.on_scheduled(5.0)
    clock.on_tokens(1, 7.0)
    clock.on_tokens(1, 8.0)
    clock.on_finish(FinishReason.STOP, now=8.0, num_prompt_tokens=1, num_cached_tokens=0, num_preemptions=1)
    found = sums(registry)
    assert found["request_queue_time_seconds"] == (1, 5.0)
    assert found["request_prefill_time_seconds"] == (1, 2.0)
    assert found["request_decode_time_seconds"] == (1, 1.0)
    assert found["request_inference_time_seconds"] == (1, 3.0)
    assert found["time_to_first_token_seconds"] == (1, 2.0)
    assert found["request_num_preemptions"] == (1, 1)


def test_first_tokens_that_come_together() -> None:
    registry = Registry()
    clock = SequenceClock(ModelMetrics(registry, "m"), arrived_at=0.0)
    clock.on_tokens(3, 1.0)
    clock.on_finish(FinishReason.STOP, now=1.0, num_prompt_tokens=1, num_cached_tokens=0, num_preemptions=0)
    found = sums(registry)
    assert found["time_to_first_token_seconds"] == (1, 1.0)
    assert found["inter_token_latency_seconds"] == (2, 0.0)
    assert "request_queue_time_seconds" not in found


def test_a_sequence_without_tokens_has_an_end_and_no_more() -> None:
    registry = Registry()
    clock = SequenceClock(ModelMetrics(registry, "m"), arrived_at=0.0)
    clock.on_finish(FinishReason.ABORT, now=2.0, num_prompt_tokens=3, num_cached_tokens=0, num_preemptions=0)
    assert set(sums(registry)) == {"e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"}
    assert value(registry, "vllm:request_success_total", 'engine="0",finished_reason="abort",model_name="m"') == 1

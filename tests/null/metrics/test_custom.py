"""Metrics of models: shared by name and labels, gone with the last model that uses them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trivium.errors import InvalidRequest
from trivium.metrics import custom
from trivium.metrics.catalogue import HTTP_IN_FLIGHT
from trivium.metrics.custom import CustomMetrics
from trivium.metrics.exposition import Exposition
from trivium.metrics.instruments import Registry


def page(registry: Registry) -> list[str]:
    return [line for line in Exposition(registry).render().decode().splitlines() if "mine" in line]


def test_a_family_has_series_of_different_labels_and_owners() -> None:
    registry = Registry()
    metrics = CustomMetrics.of(registry)
    assert CustomMetrics.of(registry) is metrics
    first = metrics.series("a", "mine", "counter", "Two\nlines.", {"x": "1"}, ())
    first.value += 2
    metrics.series("b", "mine", "counter", "", {"x": "1"}, ()).value += 3
    metrics.series("b", "mine", "counter", "", {"y": 'q"'}, ()).value = math.inf
    assert page(registry) == ["# HELP mine Two\\nlines.", "# TYPE mine counter", 'mine{x="1"} 5', 'mine{y="q\\""} +Inf']
    metrics.forget("b")
    assert page(registry)[2:] == ['mine{x="1"} 5']
    metrics.forget("a")
    assert page(registry) == []
    metrics.series("a", "mine", "gauge", "", {}, ()).value = -math.inf
    assert page(registry)[1:] == ["# TYPE mine gauge", "mine -Inf"]


def test_histograms_count_what_is_below_each_bound() -> None:
    registry = Registry()
    series = CustomMetrics.of(registry).series("a", "mine", "histogram", "", {}, (1.0, 2.0))
    assert series.histogram is not None
    for value in (0.5, 1.5, 1.5, 9.0):
        series.histogram.observe(value)
    bounds = ['mine_bucket{le="1.0"} 1', 'mine_bucket{le="2.0"} 3', 'mine_bucket{le="+Inf"} 4']
    assert page(registry)[2:] == [*bounds, "mine_sum 12.5", "mine_count 4"]


@pytest.mark.parametrize(
    ("name", "kind", "labels", "buckets", "text"),
    [
        ("no name", "gauge", {}, (), "its name is not valid"),
        ("nv_inference_count", "counter", {}, (), "the server itself has a metric"),
        ("http_requests_in_flight", "gauge", {}, (), "the server itself has a metric"),
        ("x", "gauge", {"a b": "c"}, (), "a label's name is not valid"),
        ("x", "gauge", {"__name__": "c"}, (), "a label's name is not valid"),
        ("x", "histogram", {}, (), "ascending order"),
        ("x", "histogram", {}, (2.0, 1.0), "ascending order"),
        ("mine", "gauge", {"x": "1"}, (), "it exists as a counter"),
        ("mine", "gauge", {}, (), "it exists as a counter"),
    ],
)
def test_what_prometheus_can_not_show_is_refused(name: str, kind: Any, labels: dict[str, str], buckets: tuple[float, ...], text: str) -> None:
    registry = Registry()
    registry.gauge(HTTP_IN_FLIGHT)
    metrics = CustomMetrics.of(registry)
    metrics.series("a", "mine", "counter", "", {"x": "1"}, ())
    with pytest.raises(InvalidRequest, match=text):
        metrics.series("a", name, kind, "", labels, buckets)


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "MAX_SERIES", 2)
    metrics = CustomMetrics.of(Registry())
    for value in ("1", "2"):
        metrics.series("a", "mine", "gauge", "", {"x": value}, ())
    with pytest.raises(InvalidRequest, match="there are 2 series"):
        metrics.series("a", "mine", "gauge", "", {"x": "3"}, ())

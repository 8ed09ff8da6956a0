"""Prometheus text from a `Registry`, rendered by prometheus_client with a registry of its own. Call `render` off the event loop."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trivium.metrics.catalogue import Metric
from trivium.metrics.instruments import Histogram, Instrument, LabelValues, Registry

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _RegistryCollector(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        for metric, series in self._registry.series():
            yield _family(metric, series)


class Exposition:
    """The page that `/metrics` shows: our metrics, then those of the process and of Python."""

    def __init__(self, registry: Registry) -> None:
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(_RegistryCollector(registry))
        ProcessCollector(registry=self._collectors)
        PlatformCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self) -> bytes:
        return generate_latest(self._collectors)


def _family(metric: Metric, series: list[tuple[LabelValues, Instrument]]) -> Family:
    labels = metric.labels
    match metric.kind:
        case "counter":
            family: Family = CounterMetricFamily(metric.name, metric.doc, labels=labels)
        case "gauge":
            family = GaugeMetricFamily(metric.name, metric.doc, labels=labels)
        case "histogram":
            family = HistogramMetricFamily(metric.name, metric.doc, labels=labels)
    for values, instrument in series:
        if isinstance(instrument, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(values, *_cumulative(instrument))
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric(values, instrument.value)
    return family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    counts = list(histogram.counts)
    bounds = [*(repr(bound) for bound in histogram.buckets), "+Inf"]
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, histogram.total

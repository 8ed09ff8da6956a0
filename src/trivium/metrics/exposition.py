"""Prometheus text from a `Registry`, rendered by prometheus_client with a registry of its own. Call `render` off the event loop."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, UntypedMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trivium.metrics.catalogue import Metric
from trivium.metrics.instruments import Histogram, Instrument, LabelValues, Registry
from trivium.metrics.tgi import tgi_series
from trivium.metrics.triton import render

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _RegistryCollector(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        names = self._registry.names
        for metric, series in self._registry.series():
            if "vllm" in names or not metric.name.startswith("vllm:"):
                yield _family(metric, series)
        if "tgi" in names:
            yield from (_family(metric, series, has_suffix=False) for metric, series in tgi_series(self._registry))


class Exposition:
    """The page that `/metrics` shows: our metrics, then those of the process and of Python."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(_RegistryCollector(registry))
        ProcessCollector(registry=self._collectors)
        PlatformCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self) -> bytes:
        points = [point for source in list(self._registry.triton_sources) for point in source()]
        return generate_latest(self._collectors) + render(points)


def _family(metric: Metric, series: list[tuple[LabelValues, Instrument]], *, has_suffix: bool = True) -> Family:
    """Without the suffix a counter has no type in the text: Prometheus' own format knows no counter whose name does not end in `_total`."""
    labels = metric.labels
    family: Family
    match metric.kind:
        case "counter" if not has_suffix:
            family = UntypedMetricFamily(metric.name, metric.doc, labels=labels)
        case "counter":
            family = CounterMetricFamily(metric.name, metric.doc, labels=labels)
        case "gauge":
            family = GaugeMetricFamily(metric.name, metric.doc, labels=labels)
        case "histogram":
            family = HistogramMetricFamily(metric.name, metric.doc, labels=labels)
    for values, instrument in series:
        if isinstance(instrument, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(values, *_cumulative(instrument))
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily)
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

"""Counters, gauges and histograms that cost well under a microsecond to move.

One thread (the event loop's) writes; any thread may read: a reader sees each number whole, and a histogram's count is the sum of the
bucket counts it copied, so that a scrape is consistent in itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from trivium.metrics.catalogue import Metric
from trivium.metrics.triton import Point

LabelValues = tuple[str, ...]


class Counter:
    """Only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Gauge:
    """Goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """Counts per bucket; `counts[i]` are observations at most `buckets[i]` and above the bucket before it, the last one is +Inf."""

    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.total += value * times


Instrument = Counter | Gauge | Histogram


class Registry:
    """All instruments of one server, by metric and label values. `refreshers` run before each reading, in the writer's thread."""

    def __init__(self) -> None:
        self._series: dict[Metric, dict[LabelValues, Instrument]] = {}
        self.names: tuple[str, ...] = ("vllm",)
        """Servers under whose names the page shows what is measured of models; see `config.METRIC_NAMES`."""
        self.refreshers: list[Callable[[], None]] = []
        self.triton_sources: list[Callable[[], list[Point]]] = []
        """What is shown under Triton's names; called by the reading thread."""

    def counter(self, metric: Metric, *labels: str) -> Counter:
        instrument = self._get(metric, labels)
        assert isinstance(instrument, Counter)
        return instrument

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        instrument = self._get(metric, labels)
        assert isinstance(instrument, Gauge)
        return instrument

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        instrument = self._get(metric, labels)
        assert isinstance(instrument, Histogram)
        return instrument

    def series(self) -> list[tuple[Metric, list[tuple[LabelValues, Instrument]]]]:
        """A copy that another thread may walk while this one adds series."""
        return [(metric, list(found.items())) for metric, found in list(self._series.items())]

    def refresh(self) -> None:
        for refresher in self.refreshers:
            refresher()

    def _get(self, metric: Metric, labels: LabelValues) -> Instrument:
        found = self._series.setdefault(metric, {})
        instrument = found.get(labels)
        if instrument is None:
            assert len(labels) == len(metric.labels), f"{metric.name} takes labels {metric.labels}, got {labels}"
            instrument = found[labels] = _create(metric)
        return instrument


def _create(metric: Metric) -> Instrument:
    match metric.kind:
        case "counter":
            return Counter()
        case "gauge":
            return Gauge()
        case "histogram":
            return Histogram(metric.buckets)

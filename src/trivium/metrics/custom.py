"""Metrics that models make themselves: families by name, shared by all models of a server, shown under the names they were given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from trivium.errors import InvalidRequest
from trivium.metrics.instruments import Histogram, Registry
from trivium.metrics.triton import Labels, Point, TritonMetric

Kind = Literal["counter", "gauge", "histogram"]

MAX_SERIES: Final = 10_000
"""Of all models together: a label that takes any value must not fill the memory."""
_METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OURS: Final = ("nv_", "vllm:", "trivium:", "tgi_", "http_", "process_", "python_")


class Series:
    """One family and one set of labels. `owners` are the models that use it; it goes with the last of them."""

    __slots__ = ("histogram", "labels", "metric", "owners", "value")

    def __init__(self, metric: TritonMetric, labels: Labels, buckets: tuple[float, ...]) -> None:
        self.metric = metric
        self.labels = labels
        self.owners: dict[object, None] = {}
        self.value = 0.0
        self.histogram = Histogram(buckets) if metric.kind == "histogram" else None

    def points(self) -> list[Point]:
        if self.histogram is None:
            return [Point(self.metric, self.labels, self.value)]
        total = 0
        points: list[Point] = []
        for bound, count in zip((*map(repr, self.histogram.buckets), "+Inf"), list(self.histogram.counts), strict=True):
            total += count
            points.append(Point(self.metric, (*self.labels, ("le", bound)), total, "_bucket"))
        return [*points, Point(self.metric, self.labels, self.histogram.total, "_sum"), Point(self.metric, self.labels, total, "_count")]


class CustomMetrics:
    """A source of `Registry.triton_sources`. Written by one thread, the event loop's."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._families: dict[str, tuple[TritonMetric, tuple[float, ...]]] = {}
        self._series: dict[tuple[str, Labels], Series] = {}

    @classmethod
    def of(cls, registry: Registry) -> CustomMetrics:
        """The one of `registry`, made when it is first asked for."""
        found = next((source for source in registry.triton_sources if isinstance(source, cls)), None)
        if found is None:
            found = cls(registry)
            registry.triton_sources.append(found)
        return found

    def __call__(self) -> list[Point]:
        return [point for series in list(self._series.values()) for point in series.points()]

    def series(self, owner: object, name: str, kind: Kind, doc: str, labels: Mapping[str, str], buckets: Sequence[float]) -> Series:
        """An existing one or a new one. Raises `InvalidRequest` for what Prometheus can't show, and for a name that is something else already."""
        key = (name, tuple(sorted(labels.items())))
        series = self._series.get(key)
        if series is None:
            metric, bounds = self._family(name, kind, doc, labels, buckets)
            if len(self._series) >= MAX_SERIES:
                raise InvalidRequest(f"there are {MAX_SERIES} series of models' metrics already")
            series = self._series[key] = Series(metric, key[1], bounds)
        if series.metric.kind != kind:
            raise InvalidRequest(f"it exists as a {series.metric.kind}")
        series.owners[owner] = None
        return series

    def forget(self, owner: object) -> None:
        """The model is gone, and so are the series that no other uses."""
        for key, series in list(self._series.items()):
            series.owners.pop(owner, None)
            if not series.owners:
                del self._series[key]
        names = {name for name, _ in self._series}
        self._families = {name: family for name, family in self._families.items() if name in names}

    def _family(self, name: str, kind: Kind, doc: str, labels: Mapping[str, str], buckets: Sequence[float]) -> tuple[TritonMetric, tuple[float, ...]]:
        if not all(_LABEL_NAME.fullmatch(label) for label in labels):
            raise InvalidRequest("a label's name is not valid in Prometheus")
        known = self._families.get(name)
        if known is None:
            if not _METRIC_NAME.fullmatch(name):
                raise InvalidRequest("its name is not valid in Prometheus")
            if name.startswith(_OURS) or any(metric.name == name for metric, _ in self._registry.series()):
                raise InvalidRequest("the server itself has a metric of that name")
            if kind == "histogram" and (not buckets or sorted(set(buckets)) != list(buckets)):
                raise InvalidRequest("its buckets are not in ascending order")
            one_line = doc.replace("\\", r"\\").replace("\n", r"\n")
            known = self._families[name] = (TritonMetric(kind, name, one_line), tuple(buckets))
        if known[0].kind != kind:
            raise InvalidRequest(f"it exists as a {known[0].kind}")
        return known

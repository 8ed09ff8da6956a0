"""`nv_*` metrics of one model version, taken from its statistics when the page is read: requests pay nothing for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from trivium.batching.statistics import FailureReason, ModelStatistics
from trivium.metrics import triton as c
from trivium.metrics.instruments import Histogram, Registry
from trivium.metrics.triton import Labels, Point, Summary, TritonMetric
from trivium.protocol.model_config import ModelConfig

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_]")
_SUMMARIES = (c.REQUEST_SUMMARY, c.QUEUE_SUMMARY, c.COMPUTE_INPUT_SUMMARY, c.COMPUTE_INFER_SUMMARY, c.COMPUTE_OUTPUT_SUMMARY)


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """Which of Triton's metrics there are (`--metrics-config`). Counts are always there, whatever is said of latencies."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[float, ...] = c.QUANTILES


class Latencies:
    """Instruments that take each request's own figures, in nanoseconds; only where the options ask for them."""

    def __init__(self, options: MetricsOptions, buckets_ms: tuple[float, ...]) -> None:
        self.first_response = Histogram(buckets_ms) if options.histogram_latencies else None
        self.summaries = [Summary() for _ in _SUMMARIES] if options.summary_latencies else []

    def observe_first_response(self, ns: int) -> None:
        if self.first_response is not None:
            self.first_response.observe(ns / 1e6)

    def observe_success(self, *durations_ns: int) -> None:
        """Request, queue, compute input, infer and output; those at the end that don't apply are left out."""
        for summary, ns in zip(self.summaries, durations_ns, strict=False):
            summary.observe(ns // 1000)


class ModelMetrics:
    """A source of `Registry.triton_sources`, from the version's load to `close`."""

    def __init__(
        self,
        registry: Registry,
        config: ModelConfig,
        statistics: ModelStatistics,
        num_pending: Callable[[], int],
        *,
        options: MetricsOptions,
        has_cache: bool = False,
        load_seconds: float = 0.0,
    ) -> None:
        self._registry = registry
        self._statistics = statistics
        self._num_pending = num_pending
        self._options = options
        self._has_cache = has_cache
        self._load_seconds = load_seconds
        tags = tuple((f"_{_NOT_IN_LABELS.sub('_', name)}", config.metric_tags[name]) for name in sorted(config.metric_tags))
        self._labels: Labels = (("model", statistics.name), ("version", str(statistics.version)), *tags)
        self.latencies: Latencies | None = None
        if options.summary_latencies or options.histogram_latencies:
            self.latencies = Latencies(options, _buckets(config))
        registry.triton_sources.append(self._points)

    def close(self) -> None:
        """May be called again."""
        if self._points in self._registry.triton_sources:
            self._registry.triton_sources.remove(self._points)

    def _points(self) -> list[Point]:
        found, labels = self._statistics, self._labels
        points = [Point(c.SUCCESS, labels, found.success.count)]
        points += [Point(c.FAILURE, (labels[0], ("reason", reason), *labels[1:]), found.failures[reason]) for reason in FailureReason]
        points += [Point(c.COUNT, labels, found.inference_count), Point(c.EXEC_COUNT, labels, found.execution_count)]
        if self._options.counter_latencies:
            points += [
                Point(metric, labels, duration.ns // 1000)
                for metric, duration in (
                    (c.REQUEST_DURATION, found.success),
                    (c.QUEUE_DURATION, found.queue),
                    (c.COMPUTE_INPUT_DURATION, found.compute_input),
                    (c.COMPUTE_INFER_DURATION, found.compute_infer),
                    (c.COMPUTE_OUTPUT_DURATION, found.compute_output),
                )
            ]
        points += [Point(c.PENDING, labels, self._num_pending()), Point(c.LOAD_DURATION, labels, self._load_seconds)]
        if self._has_cache:
            points += [Point(c.CACHE_HITS, labels, found.cache_hit.count), Point(c.CACHE_MISSES, labels, found.cache_miss.count)]
            points += [Point(c.CACHE_HIT_DURATION, labels, found.cache_hit.ns // 1000)]
            points += [Point(c.CACHE_MISS_DURATION, labels, found.cache_miss.ns // 1000)]
        if self.latencies is not None:
            points += self._latency_points(self.latencies)
        return points

    def _latency_points(self, latencies: Latencies) -> list[Point]:
        labels = self._labels
        points: list[Point] = []
        histogram = latencies.first_response
        if histogram is not None:
            count = 0
            for bound, num in zip([*(f"{bound:g}" for bound in histogram.buckets), "+Inf"], list(histogram.counts), strict=True):
                count += num
                points.append(Point(c.FIRST_RESPONSE, (*labels, ("le", bound)), count, "_bucket"))
            points += _sum_and_count(c.FIRST_RESPONSE, labels, histogram.total, count)
        wanted = self._options.summary_quantiles
        for metric, summary in zip(_SUMMARIES, latencies.summaries, strict=bool(latencies.summaries)):
            for quantile, value in zip(wanted, summary.quantiles(wanted), strict=True):
                points.append(Point(metric, (*labels, ("quantile", f"{quantile:g}")), value))
            points += _sum_and_count(metric, labels, summary.total, summary.count)
        return points


def _sum_and_count(metric: TritonMetric, labels: Labels, total: float, count: int) -> list[Point]:
    return [Point(metric, labels, total, "_sum"), Point(metric, labels, count, "_count")]


def _buckets(config: ModelConfig) -> tuple[float, ...]:
    """A model may have its own for the histogram of first responses (`model_metrics`)."""
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == c.FIRST_RESPONSE.name and control.histogram_options.buckets:
            return tuple(sorted(control.histogram_options.buckets))
    return c.FIRST_RESPONSE_BUCKETS_MS

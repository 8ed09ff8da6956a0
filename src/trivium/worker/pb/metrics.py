"""A model's own metrics and log lines: kept by the server, which all instances of a model share."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from trivium.protocol.worker_messages import LogLine, MetricUpdate
from trivium.worker.pb import calls
from trivium.worker.pb.errors import TritonModelException, clean


class Metric:
    """One series of a family, made by `MetricFamily.Metric`."""

    def __init__(self, family: MetricFamily, labels: Mapping[str, str], buckets: Sequence[float]) -> None:
        self._family = family
        self._labels = dict(labels)
        self._buckets = list(buckets)
        self._send("declare", 0.0)

    def increment(self, value: float) -> None:
        if self._family.kind == MetricFamily.HISTOGRAM:
            raise TritonModelException("a histogram can't be incremented; observe() a value")
        if value < 0 and self._family.kind == MetricFamily.COUNTER:
            raise TritonModelException("TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.")
        self._send("increment", value)

    def set(self, value: float) -> None:
        if self._family.kind != MetricFamily.GAUGE:
            raise TritonModelException("only a gauge can be set")
        self._send("set", value)

    def observe(self, value: float) -> None:
        if self._family.kind != MetricFamily.HISTOGRAM:
            raise TritonModelException("only a histogram observes values")
        self._send("observe", value)

    def value(self) -> float:
        """As the server has it, with what other instances did."""
        if self._family.kind == MetricFamily.HISTOGRAM:
            raise TritonModelException("a histogram has no single value")
        exchange = calls.current_link().open_exchange()
        self._send("value", 0.0, exchange.key)
        return calls.wait_for_reply(exchange)

    def _send(self, action: str, amount: float, key: int = 0) -> None:
        family = self._family
        calls.tell(
            MetricUpdate(
                action=action,
                name=family.name,
                kind=family.kind,
                help=family.description,
                labels=self._labels,
                buckets=self._buckets,
                amount=float(amount),
                key=key,
            )
        )


class MetricFamily:
    """`MetricFamily(name, description, kind)`; its metrics differ in their labels."""

    COUNTER: Final = "counter"
    GAUGE: Final = "gauge"
    HISTOGRAM: Final = "histogram"

    def __init__(self, name: str, description: str, kind: Literal["counter", "gauge", "histogram"]) -> None:
        if kind not in (self.COUNTER, self.GAUGE, self.HISTOGRAM):
            raise TritonModelException("Unknown metric kind")
        self.name = name
        self.description = description
        self.kind: Literal["counter", "gauge", "histogram"] = kind

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """`buckets`: upper bounds, ascending, of a histogram, which needs them."""
        if (self.kind == self.HISTOGRAM) != (buckets is not None):
            raise TritonModelException("a histogram needs buckets and nothing else has them")
        return Metric(self, labels or {}, buckets or ())


class Logger:
    """Lines in the server's log."""

    INFO: Final = logging.INFO
    WARNING: Final = logging.WARNING
    ERROR: Final = logging.ERROR
    VERBOSE: Final = logging.DEBUG

    @staticmethod
    def log(message: str, level: int = logging.INFO) -> None:
        calls.tell(LogLine(level, clean(str(message))))

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, logging.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, logging.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, logging.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, logging.DEBUG)

"""TGI's metrics, told from what is measured anyway: nothing is counted twice, and a request costs nothing more for them.

Names are TGI's, with `model_name` as a label where the source has one; buckets are ours, which a quantile over a rate does not mind. Counters have no
`_total`, as in TGI. What TGI says of its batches (forward, decode and filter times, concatenations) has no equal here and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from trivium.metrics import catalogue as c
from trivium.metrics.catalogue import Metric
from trivium.metrics.instruments import Counter, Gauge, Histogram, Instrument, LabelValues, Registry

GENERATION_HANDLERS: Final = frozenset({"/", "/generate", "/generate_stream", "/invocations", "/vertex", "/v1/completions", "/v1/chat/completions"})
MODEL: Final = "model_name"

Keep = Callable[[dict[str, str]], bool]
Series = list[tuple[LabelValues, Instrument]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The series of `metric` whose labels `keep` takes; `label` is the value that they add to the derived metric's own label."""

    metric: Metric
    keep: Keep = lambda labels: True
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Derived:
    metric: Metric
    sources: tuple[Source, ...]


def _metric(name: str, source: Metric, doc: str, labels: tuple[str, ...] = (MODEL,)) -> Metric:
    return Metric(name=name, kind=source.kind, doc=doc, labels=labels, buckets=source.buckets)


def _same(name: str, source: Metric) -> Derived:
    return Derived(metric=_metric(name, source, f"{source.doc} As {source.name}."), sources=(Source(metric=source),))


def _answers_with(*statuses: str) -> Keep:
    """Requests to the generating routes with one of these statuses; none named: with any."""
    return lambda labels: labels["handler"] in GENERATION_HANDLERS and labels["method"] == "POST" and (not statuses or labels["status"] in statuses)


def _ends_with(*reasons: str) -> Keep:
    return lambda labels: labels["finished_reason"] in reasons


DERIVED: Final = (
    Derived(
        metric=_metric("tgi_request_count", c.HTTP_REQUESTS, "Requests to the generating routes that have ended.", ()),
        sources=(Source(metric=c.HTTP_REQUESTS, keep=_answers_with()),),
    ),
    Derived(
        metric=_metric("tgi_request_success", c.REQUEST_SUCCESS, "Sequences that ended as they should."),
        sources=(Source(metric=c.REQUEST_SUCCESS, keep=_ends_with("stop", "length")),),
    ),
    Derived(
        metric=_metric("tgi_request_failure", c.REQUEST_SUCCESS, "What failed: validation, overloaded, generation or dropped.", ("err",)),
        sources=(
            Source(metric=c.HTTP_REQUESTS, keep=_answers_with("400", "422"), label="validation"),
            Source(metric=c.ADMISSION_REJECTIONS, label="overloaded"),
            Source(metric=c.REQUEST_SUCCESS, keep=_ends_with("error"), label="generation"),
            Source(metric=c.REQUEST_SUCCESS, keep=_ends_with("abort"), label="dropped"),
        ),
    ),
    _same("tgi_request_duration", c.E2E_LATENCY),
    _same("tgi_request_validation_duration", c.VALIDATION_TIME),
    _same("tgi_request_queue_duration", c.QUEUE_TIME),
    _same("tgi_request_inference_duration", c.INFERENCE_TIME),
    _same("tgi_request_mean_time_per_token_duration", c.TIME_PER_OUTPUT_TOKEN),
    _same("tgi_request_generated_tokens", c.REQUEST_GENERATION_TOKENS),
    _same("tgi_request_input_length", c.REQUEST_PROMPT_TOKENS),
    _same("tgi_request_max_new_tokens", c.REQUEST_PARAMS_MAX_TOKENS),
    Derived(
        metric=_metric("tgi_batch_inference_duration", c.INTER_TOKEN_LATENCY, "prefill: of each prompt; decode: of each token.", (MODEL, "method")),
        sources=(Source(metric=c.PREFILL_TIME, label="prefill"), Source(metric=c.INTER_TOKEN_LATENCY, label="decode")),
    ),
    _same("tgi_batch_current_size", c.NUM_REQUESTS_RUNNING),
    _same("tgi_queue_size", c.NUM_REQUESTS_WAITING),
)
MAX_TOTAL_TOKENS: Final = Metric(name="tgi_batch_max_total_tokens", kind="gauge", doc="Tokens that the KV cache holds.", labels=(MODEL,))
CURRENT_TOKENS: Final = Metric(
    name="tgi_batch_current_max_tokens", kind="gauge", doc="Tokens that the KV blocks of running sequences hold.", labels=(MODEL,)
)


def tgi_series(registry: Registry) -> list[tuple[Metric, Series]]:
    """What `Registry.series` gives, under TGI's names."""
    known = dict(registry.series())
    found = [(derived.metric, _derive(derived, known)) for derived in DERIVED]
    return [*found, *_token_gauges(known)]


def _derive(derived: Derived, known: dict[Metric, Series]) -> Series:
    sums: dict[LabelValues, Instrument] = {}
    for source in derived.sources:
        for values, instrument in known.get(source.metric, []):
            labels = dict(zip(source.metric.labels, values, strict=True))
            if source.keep(labels):
                key = tuple(labels[name] if name == MODEL else source.label or "" for name in derived.metric.labels)
                sums[key] = _sum(sums.get(key), instrument)
        if source.label is not None and derived.metric.labels == ("err",):
            sums.setdefault((source.label,), Counter())
    return list(sums.items())


def _sum(total: Instrument | None, added: Instrument) -> Instrument:
    """A new instrument: those of the registry go on moving."""
    match added:
        case Histogram():
            result = Histogram(added.buckets)
            old = total if isinstance(total, Histogram) else Histogram(added.buckets)
            result.counts = [a + b for a, b in zip(old.counts, added.counts, strict=True)]
            result.total = old.total + added.total
            return result
        case Counter() | Gauge():
            scalar = type(added)()
            scalar.value = added.value + (total.value if isinstance(total, Counter | Gauge) else 0.0)
            return scalar


def _token_gauges(known: dict[Metric, Series]) -> Iterable[tuple[Metric, Series]]:
    largest: dict[str, float] = {}
    for values, _ in known.get(c.CACHE_CONFIG_INFO, []):
        labels = dict(zip(c.CACHE_CONFIG_INFO.labels, values, strict=True))
        largest[labels[MODEL]] = float(labels["block_size"]) * float(labels["num_gpu_blocks"])
    used = {values[0]: instrument for values, instrument in known.get(c.KV_CACHE_USAGE, [])}
    shares = {model: instrument.value for model, instrument in used.items() if isinstance(instrument, Gauge)}
    yield MAX_TOTAL_TOKENS, [((model,), _gauge(tokens)) for model, tokens in largest.items()]
    yield CURRENT_TOKENS, [((model,), _gauge(tokens * shares.get(model, 0.0))) for model, tokens in largest.items()]


def _gauge(value: float) -> Gauge:
    gauge = Gauge()
    gauge.set(value)
    return gauge

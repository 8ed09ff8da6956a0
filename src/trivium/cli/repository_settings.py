"""Triton's flags that are little languages of their own: `--backend-config`, `--rate-limit-resource`, `--cache-config`, `--metrics-config`.

A list setting separates its entries by commas, and so do some of these inside an entry; each is read so that both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from trivium.backends.response_cache import ResponseCache
from trivium.batching.model_metrics import MetricsOptions
from trivium.errors import ConfigError
from trivium.repository.backend_names import BACKENDS

MAX_BATCH_SIZE: Final = "default-max-batch-size"
"""Setting of every back end: the batch size of models that can batch and whose configuration says nothing of it."""


def backend_settings(words: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """`name,key=value` by name, `key=value` under "": those of all back ends. The commas of several entries may have been taken for those
    between them. Raises `ConfigError`."""
    found: dict[str, dict[str, str]] = {}
    backend = ""
    for word in (part for entry in words for part in entry.split(",") if part):
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(backend, {})[key] = value
            backend = ""
        elif backend:
            raise ConfigError(f"backend_config: {backend} is followed by no key=value.", param="backend_config")
        else:
            backend = word
    if backend:
        raise ConfigError(f"backend_config: {backend} is followed by no key=value.", param="backend_config")
    unknown = sorted(set(found) - {"", *BACKENDS})
    if unknown:
        raise ConfigError(f"backend_config: there is no back end {unknown[0]}; there are: {', '.join(BACKENDS)}.", param="backend_config")
    return found


def default_max_batch_size(settings: Mapping[str, Mapping[str, str]], backend: str) -> int:
    text = settings.get(backend, {}).get(MAX_BATCH_SIZE) or settings.get("", {}).get(MAX_BATCH_SIZE) or "4"
    if not text.isdecimal():
        raise ConfigError(f"backend_config: {MAX_BATCH_SIZE} must be a whole number, got {text!r}.", param="backend_config")
    return int(text)


def resource_limits(words: Iterable[str]) -> dict[tuple[str, int | None], int]:
    """`name:count[:device]` to copies by name and device (None: global). Raises `ConfigError`."""
    found: dict[tuple[str, int | None], int] = {}
    for word in words:
        parts = word.split(":")
        if len(parts) not in (2, 3) or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
            raise ConfigError(f"rate_limit_resource must be name:count or name:count:device, got {word!r}.", param="rate_limit_resource")
        device = int(parts[2]) if len(parts) == 3 else None
        found[parts[0], device] = int(parts[1])
    return found


def response_cache(words: Iterable[str]) -> ResponseCache | None:
    """`local,size=BYTES`. Raises `ConfigError`."""
    parts = [part for entry in words for part in entry.split(",") if part]
    if not parts:
        return None
    kind, *rest = parts
    given: dict[str, str] = {}
    for part in rest:
        key, _, value = part.partition("=")
        given[key] = value
    if kind != "local" or set(given) != {"size"} or not given["size"].isdecimal():
        raise ConfigError(f"cache_config must be local,size=BYTES, got {','.join(parts)!r}.", param="cache_config")
    return ResponseCache(int(given["size"]))


def metrics_options(words: Iterable[str]) -> MetricsOptions:
    """`counter_latencies`, `summary_latencies` and `histogram_latencies`, each `=true` or `=false`, and
    `summary_quantiles=0.5:0.05,0.99:0.001` (the errors after the colons are taken for granted). Raises `ConfigError`."""
    options = MetricsOptions()
    quantiles: list[float] = []
    for word in (part for entry in words for part in entry.split(",") if part):
        key, equals, value = word.partition("=")
        if key == "summary_quantiles" or (quantiles and not equals):
            quantiles.append(_quantile(value if equals else word))
            continue
        if value not in ("true", "false"):
            raise ConfigError(f"metrics_config: {word!r} must be true or false.", param="metrics_config")
        is_on = value == "true"
        match key:
            case "counter_latencies":
                options = replace(options, counter_latencies=is_on)
            case "summary_latencies":
                options = replace(options, summary_latencies=is_on)
            case "histogram_latencies":
                options = replace(options, histogram_latencies=is_on)
            case _:
                raise ConfigError(f"metrics_config: there is no {key!r}.", param="metrics_config")
    return replace(options, summary_quantiles=tuple(quantiles)) if quantiles else options


def _quantile(text: str) -> float:
    try:
        quantile = float(text.partition(":")[0])
    except ValueError:
        quantile = -1.0
    if not 0.0 < quantile < 1.0:
        raise ConfigError(f"metrics_config: a quantile is between 0 and 1, got {text!r}.", param="metrics_config")
    return quantile

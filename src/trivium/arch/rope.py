"""Rotary embedding as a config describes it: `rope_scaling` with `rope_theta` (older files) or `rope_parameters` (newer ones).

Two scalings depend on how long a sequence gets: "dynamic" (NTK: the base grows with the length) and "longrope" (one set of factors up to
the original context, another beyond it). Keys in the cache must not change when a sequence grows, when it is computed in chunks or when
its prefix is shared, so here the length is always `max_model_len`: serve with a `max_model_len` up to the original context to get the
short factors. Scalings: https://huggingface.co/docs/transformers (modeling_rope_utils); LongRoPE's attention factor: arXiv 2402.13753.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from trivium.arch.reader import ConfigReader
from trivium.errors import ModelLoadError

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su")
"""Values of `rope_type` (or, in older files, `type`) that are understood; "su" is longrope's first name."""

_ALIASES: Mapping[str, str] = {"su": "longrope"}

KNOWN_KEYS = frozenset(
    (
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "low_freq_factor",
        "high_freq_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
        "finetuned",
    )
)
"""Anything else in the section would change the rotation in a way we don't know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSpec:
    """Enough to compute the tables. Fields that a kind doesn't use keep their defaults, so that equal tables have equal specs."""

    kind: RopeKind = "default"
    theta: float
    rotary_dim: int
    """Leading dimensions of each head that turn."""
    interleaved: bool = False
    """Pairs are neighbours (2i, 2i + 1) instead of halves (i, i + rotary_dim / 2)."""
    factor: float = 1.0
    attention_factor: float = 1.0
    """Multiplies cosines and sines."""
    original_max_len: int = 0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    """LongRoPE: what each frequency is divided by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSource:
    """Where a config keeps its rope parameters: one section, with older top-level keys as fall-backs."""

    section: ConfigReader
    rope_type: str
    theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    original_max_len: int

    @classmethod
    def read(
        cls,
        config: ConfigReader,
        *,
        layer_type: str | None = None,
        default_theta: float = 10000.0,
        theta_key: str = "rope_theta",
        use_scaling: bool = True,
        original_max_len: int | None = None,
        aliases: Mapping[str, str] = _ALIASES,
    ) -> RopeSource:
        """`layer_type` picks the part of a `rope_parameters` that has one per layer type. `theta_key` is the older top-level key of the
        base. `use_scaling=False` ignores an older `rope_scaling` (Gemma 3's local layers). `original_max_len` is the family's default,
        `aliases` its own names of rope types."""
        section = _section(config, layer_type, use_scaling=use_scaling)
        for key in section.present_keys():
            if key not in KNOWN_KEYS:
                raise ModelLoadError(f"{section.where}: {key!r} is not supported.")
        rope_type = section.text("rope_type", default=section.text("type", default="default"))
        if rope_type not in ROPE_TYPES:
            raise ModelLoadError(f"{section.where}: rope_type {rope_type!r} is not supported; supported: {', '.join(ROPE_TYPES)}.")
        max_len = config.integer("max_position_embeddings")
        top_level = config.integer("original_max_position_embeddings", default=original_max_len or 0, minimum=0)
        return cls(
            section=section,
            rope_type={**_ALIASES, **aliases}.get(rope_type, rope_type),
            theta=section.positive("rope_theta", default=config.positive(theta_key, default=default_theta)),
            partial_rotary_factor=section.positive("partial_rotary_factor", default=config.positive("partial_rotary_factor", default=1.0)),
            max_position_embeddings=max_len,
            original_max_len=top_level or section.integer("original_max_position_embeddings", default=max_len),
        )

    @property
    def declared_len(self) -> int:
        """The context length that the config promises, after scaling, by vLLM's rule: linear and dynamic multiply `max_position_embeddings`,
        YaRN multiplies the original length; llama3 and longrope state the scaled length in `max_position_embeddings`."""
        if self.rope_type in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.section.positive("factor"))
        if self.rope_type == "yarn" and self.section.has("factor"):
            return int(self.original_max_len * self.section.positive("factor"))
        return self.max_position_embeddings

    @property
    def factor(self) -> float:
        """The stretch; where it isn't given, the ratio of the scaled to the original context (DeepSeek, Phi-3)."""
        return self.section.positive("factor", default=self.max_position_embeddings / self.original_max_len)

    def mscale_squared(self) -> float:
        """DeepSeek's correction of the softmax scale under a scaled rope (its `mscale_all_dim`)."""
        mscale_all_dim = self.section.number("mscale_all_dim", default=0.0)
        if self.rope_type == "default" or not mscale_all_dim:
            return 1.0
        return _yarn_mscale(self.factor, mscale_all_dim) ** 2

    def resolve(self, head_dim: int, max_model_len: int, *, interleaved: bool = False) -> RopeSpec:
        """The scaling with every length-dependent choice made for `max_model_len`."""
        rotary_dim = int(head_dim * self.partial_rotary_factor)
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
            raise ModelLoadError(f"{self.section.where}: rotary dimension {rotary_dim} of a head of {head_dim} must be even and fit in it.")
        base = RopeSpec(theta=self.theta, rotary_dim=rotary_dim, interleaved=interleaved)
        return _RESOLVERS[self.rope_type](self, base, max_model_len)


def _section(config: ConfigReader, layer_type: str | None, *, use_scaling: bool) -> ConfigReader:
    parameters = config.section("rope_parameters")
    if layer_type is not None and parameters.has(layer_type):
        return parameters.section(layer_type)
    if config.has("rope_parameters"):
        return parameters
    return config.section("rope_scaling") if use_scaling else ConfigReader({})


def _default(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    return base


def _linear(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    return replace(base, kind="linear", factor=source.section.positive("factor"))


def _dynamic(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    """NTK-aware: a larger base, and nothing else, once sequences may pass the original context."""
    factor, original = source.section.positive("factor"), source.max_position_embeddings
    stretch = factor * max(max_model_len, original) / original - (factor - 1)
    return replace(base, theta=base.theta * stretch ** (base.rotary_dim / (base.rotary_dim - 2)))


def _llama3(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    section = source.section
    low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
    if high <= low:
        raise section.error("high_freq_factor", f"must be greater than low_freq_factor ({low}).")
    return replace(
        base,
        kind="llama3",
        factor=section.positive("factor"),
        original_max_len=source.original_max_len,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    section = source.section
    return replace(
        base,
        kind="yarn",
        factor=source.factor,
        attention_factor=_yarn_attention_factor(source),
        original_max_len=source.original_max_len,
        beta_fast=section.positive("beta_fast", default=32.0),
        beta_slow=section.positive("beta_slow", default=1.0),
        truncate=section.flag("truncate", default=True),
    )


def _longrope(source: RopeSource, base: RopeSpec, max_model_len: int) -> RopeSpec:
    section = source.section
    is_long = max_model_len > source.original_max_len
    divisors = section.numbers("long_factor" if is_long else "short_factor")
    if len(divisors) != base.rotary_dim // 2:
        raise section.error("long_factor" if is_long else "short_factor", f"{base.rotary_dim // 2} numbers expected, there are {len(divisors)}.")
    mscale = section.positive_or_none("long_mscale" if is_long else "short_mscale") or section.positive_or_none("attention_factor")
    if mscale is None:
        mscale = math.sqrt(1 + math.log(source.factor) / math.log(source.original_max_len)) if source.factor > 1 else 1.0
    return replace(base, kind="longrope", divisors=divisors, attention_factor=mscale)


_RESOLVERS: dict[str, Callable[[RopeSource, RopeSpec, int], RopeSpec]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(source: RopeSource) -> float:
    section = source.section
    if section.has("attention_factor"):
        return section.positive("attention_factor")
    mscale, mscale_all_dim = section.number("mscale", default=0.0), section.number("mscale_all_dim", default=0.0)
    if mscale and mscale_all_dim:
        return _yarn_mscale(source.factor, mscale) / _yarn_mscale(source.factor, mscale_all_dim)
    return _yarn_mscale(source.factor, 1.0)

"""Every exception Trivium raises on purpose, and how each one looks on the wire.

    TriviumError
    ├── InvalidRequest            the caller's mistake; say what to change
    │   ├── UnknownField
    │   ├── UnsupportedFeature    a known field that asks for what this server can't do
    │   └── PromptTooLong
    ├── Unauthorized
    ├── ModelNotFound
    ├── PayloadTooLarge
    ├── Overloaded                the queue is full: try again later
    ├── NotReady                  starting, draining, or the engine is being restarted
    ├── DeadlineExceeded
    ├── RequestCancelled
    ├── GenerationFailed          one request failed inside the engine; the others go on
    ├── EngineDead                the engine process is gone; its requests fail with this
    ├── ConfigError               a flag, file or environment variable is wrong
    ├── ModelLoadError            a model folder can't be served
    │   ├── UnsupportedArchitecture
    │   ├── UnsupportedWeightFormat
    │   └── WeightError           a missing, extra, truncated or misshapen tensor
    └── InternalError             our bug

`slug` is stable and part of the API; `http_status` is what HTTP answers with. Frontends render the rest.
"""

from __future__ import annotations

from typing import ClassVar


class TriviumError(Exception):
    """Base of the tree. `param` names the offending request field, when there is one."""

    slug: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(TriviumError, ValueError):
    """A ValueError as well: that is what users of `LLM` catch."""

    slug = "invalid_request"
    http_status = 400


class UnknownField(InvalidRequest):
    slug = "unknown_field"


class UnsupportedFeature(InvalidRequest):
    slug = "unsupported"


class PromptTooLong(InvalidRequest):
    slug = "context_length_exceeded"


class Unauthorized(TriviumError):
    slug = "unauthorized"
    http_status = 401


class ModelNotFound(TriviumError):
    slug = "model_not_found"
    http_status = 404


class PayloadTooLarge(TriviumError):
    slug = "payload_too_large"
    http_status = 413


class Overloaded(TriviumError):
    """The queue is full. `retry_after_s` is a whole number of seconds for the `Retry-After` header."""

    slug = "overloaded"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(TriviumError):
    slug = "not_ready"
    http_status = 503

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(TriviumError):
    slug = "deadline_exceeded"
    http_status = 504


class RequestCancelled(TriviumError):
    slug = "cancelled"
    http_status = 499


class GenerationFailed(TriviumError):
    slug = "generation_failed"
    http_status = 500


class EngineDead(TriviumError):
    slug = "engine_dead"
    http_status = 503


class ConfigError(TriviumError):
    slug = "config_error"


class ModelLoadError(TriviumError):
    slug = "model_load_error"


class UnsupportedArchitecture(ModelLoadError):
    slug = "unsupported_architecture"


class UnsupportedWeightFormat(ModelLoadError):
    slug = "unsupported_weight_format"


class WeightError(ModelLoadError):
    slug = "weight_error"


class InternalError(TriviumError):
    pass


def _subclasses(cls: type[TriviumError]) -> list[type[TriviumError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


ERRORS_BY_SLUG: dict[str, type[TriviumError]] = {cls.slug: cls for cls in reversed(_subclasses(TriviumError))}
"""Slug to class: how an error that crossed a process boundary is raised again."""


def error_from_slug(slug: str, message: str) -> TriviumError:
    """The error that another process reported; an unknown slug makes an `InternalError`."""
    return ERRORS_BY_SLUG.get(slug, InternalError)(message)

"""How an error looks on TGI's routes: `{"error": message, "error_type": kind}`, with the kinds and statuses that its clients map to classes."""

from __future__ import annotations

from typing import Final

import msgspec

from trivium.errors import (
    DeadlineExceeded,
    EngineDead,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    TriviumError,
    Unauthorized,
)
from trivium.frontends.asgi import Send, send_bytes
from trivium.frontends.errors import HttpError, error_headers
from trivium.frontends.limits import MalformedBody


class TgiError(HttpError):
    """One of TGI's own kinds, with its text as it is."""


class TgiErrorBody(msgspec.Struct):
    error: str
    error_type: str


_KINDS: Final[tuple[tuple[type[TriviumError], int, str], ...]] = (
    (MalformedBody, 400, "malformed_request"),
    (GenerationFailed, 424, "generation"),
    (EngineDead, 424, "generation"),
    (NotReady, 503, "healthcheck"),
    (DeadlineExceeded, 504, "timeout"),
    (Unauthorized, 401, "unauthorized"),
    (ModelNotFound, 404, "model_not_found"),
    (PayloadTooLarge, 413, "payload_too_large"),
)


def incomplete_generation(*, is_stream: bool) -> TgiError:
    """The engine ended a request before its end."""
    suffix = "_stream" if is_stream else ""
    return TgiError(500, f"incomplete_generation{suffix}", f"Incomplete generation{suffix.replace('_', ' ')}")


def template_error(message: str) -> TgiError:
    return TgiError(422, "template_error", f"Template error: {message}")


def unhealthy() -> TgiError:
    return TgiError(503, "healthcheck", "unhealthy")


def render(error: TriviumError) -> tuple[int, TgiErrorBody]:
    """Status and body. What TGI has no kind for keeps its own status under a kind that no client mistakes for another."""
    if isinstance(error, HttpError):
        return error.status, TgiErrorBody(error.message, error.code)
    if isinstance(error, Overloaded):
        return 429, TgiErrorBody("Model is overloaded", "overloaded")
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            prefix = "Request failed during generation: " if name == "generation" else ""
            return status, TgiErrorBody(prefix + error.message, name)
    if isinstance(error, InvalidRequest):
        return 422, TgiErrorBody(f"Input validation error: {error.message}", "validation")
    return error.http_status, TgiErrorBody(error.message, error.slug)


async def send_tgi_error(send: Send, error: TriviumError) -> None:
    status, body = render(error)
    headers = error_headers(error)
    if status == 503 and not headers:
        headers = [(b"retry-after", b"1")]
    await send_bytes(send, msgspec.json.encode(body), status=status, headers=headers)


def error_event(error: TriviumError) -> bytes:
    """The last event of a stream that broke."""
    return b"data:%b\n\n" % msgspec.json.encode(render(error)[1])

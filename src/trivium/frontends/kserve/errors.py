"""How errors look on KServe routes: Triton's `{"error": "text"}`, its HTTP codes and its gRPC codes, in one table.

Two of them differ from the rest of the server: a full queue and a queue timeout are "unavailable" (503) here, as Triton's clients expect.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trivium.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    RequestCancelled,
    TriviumError,
    Unauthorized,
    UnsupportedFeature,
)
from trivium.frontends.asgi import JSON, Headers, Send, send_bytes
from trivium.frontends.errors import HttpError, error_headers

_TABLE: Final[tuple[tuple[type[TriviumError], int, str], ...]] = (
    (UnsupportedFeature, 501, "UNIMPLEMENTED"),
    (InvalidRequest, 400, "INVALID_ARGUMENT"),
    (ModelLoadError, 400, "INVALID_ARGUMENT"),
    (ModelNotFound, 404, "NOT_FOUND"),
    (Unauthorized, 401, "UNAUTHENTICATED"),
    (PayloadTooLarge, 413, "RESOURCE_EXHAUSTED"),
    (Overloaded, 503, "UNAVAILABLE"),
    (NotReady, 503, "UNAVAILABLE"),
    (DeadlineExceeded, 503, "UNAVAILABLE"),
    (EngineDead, 503, "UNAVAILABLE"),
    (RequestCancelled, 499, "CANCELLED"),
)
"""The first class that fits counts; anything else is INTERNAL."""

_HTTP_ERRORS: Final = {404: "Not Found", 405: "Method Not Allowed"}
"""Routing errors in Triton's words."""


class KserveErrorBody(msgspec.Struct):
    error: str


def status_of(error: TriviumError) -> int:
    if isinstance(error, HttpError):
        return error.status
    return next((status for kind, status, _ in _TABLE if isinstance(error, kind)), 500)


def grpc_code_of(error: TriviumError) -> str:
    """Name of a `grpc.StatusCode`."""
    return next((code for kind, _, code in _TABLE if isinstance(error, kind)), "INTERNAL")


def text_of(error: TriviumError) -> str:
    return _HTTP_ERRORS.get(error.status, error.message) if isinstance(error, HttpError) else error.message


def error_body(error: TriviumError) -> bytes:
    return msgspec.json.encode(KserveErrorBody(text_of(error)))


def headers_of(error: TriviumError) -> Headers:
    return error_headers(error)


def rendered(error: TriviumError) -> tuple[int, bytes, Headers]:
    """Status, body and further headers."""
    return status_of(error), error_body(error), error_headers(error)


async def send_kserve_error(send: Send, error: TriviumError) -> None:
    await send_bytes(send, error_body(error), status=status_of(error), content_type=JSON, headers=error_headers(error))

"""How an exception looks over HTTP: OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`. `code` is the error's slug.

Messages come from typed errors only. Anything else is our bug: it is logged with its traceback and answered with a sentence that
tells nothing about the inside.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from trivium.errors import DeadlineExceeded, EngineDead, InternalError, NotReady, Overloaded, TriviumError
from trivium.frontends.asgi import Headers, Send, send_bytes

logger = logging.getLogger(__name__)

STATUS_CLIENT_CLOSED = 499

ErrorSender = Callable[[Send, TriviumError], Awaitable[None]]
"""Answers a request with an error, in the shape of one API."""

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class HttpError(TriviumError):
    """A mistake that only exists over HTTP (wrong method, too large a header, …)."""

    def __init__(self, status: int, slug: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = slug


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


def status_of(error: TriviumError) -> int:
    return error.status if isinstance(error, HttpError) else error.http_status


def error_body(error: TriviumError) -> bytes:
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = error.code if isinstance(error, HttpError) else error.slug
    return msgspec.json.encode(ErrorBody(ErrorDetail(error.message, kind, error.param, code)))


def error_headers(error: TriviumError) -> Headers:
    if isinstance(error, Overloaded | NotReady):
        return [(b"retry-after", str(error.retry_after_s).encode())]
    if isinstance(error, EngineDead):
        return [(b"retry-after", b"1")]
    if status_of(error) == 401:
        return [(b"www-authenticate", b"Bearer")]
    return []


def as_trivium_error(error: BaseException) -> TriviumError:
    """The error itself if it is one of ours, else an `InternalError`; the original is logged."""
    if isinstance(error, TriviumError):
        if error.http_status >= 500 and not isinstance(error, NotReady | DeadlineExceeded | EngineDead | HttpError):
            logger.error("request failed: %s", error.message)
        return error
    logger.error("unexpected %s while answering a request", type(error).__name__, exc_info=error)
    return InternalError("Something went wrong inside the server.")


async def send_error(send: Send, error: TriviumError) -> None:
    await send_bytes(send, error_body(error), status=status_of(error), headers=error_headers(error))

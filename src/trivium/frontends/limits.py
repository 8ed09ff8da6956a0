"""Reading a request: bounded in size and time before anything is allocated for it, and parsed by one guarded function."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec

from trivium.errors import InvalidRequest, PayloadTooLarge, RequestCancelled, UnknownField
from trivium.frontends.asgi import Receive, Scope, header
from trivium.frontends.errors import HttpError

T = TypeVar("T")

_PATH = re.compile(r" - at `\$?\.?([^`]*)`$")
_KEY_PATH = re.compile(r" - at `key` in `\$?\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"^Object missing required field `(.*?)`")


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """Raises `PayloadTooLarge`, `RequestCancelled` when the client went away, and `HttpError` 408 or 415."""
    encoding = header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise HttpError(415, "unsupported_content_encoding", "Compressed request bodies are not accepted; send the body as it is.")
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    message = await _receive(receive, timeout_s)
    body = message.get("body", b"")
    if message.get("more_body", False):
        body = await _read_rest(receive, body, max_bytes=max_bytes, timeout_s=timeout_s)
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


async def _read_rest(receive: Receive, first: bytes, *, max_bytes: int, timeout_s: float) -> bytes:
    body = bytearray(first)
    try:
        async with asyncio.timeout(timeout_s):
            while len(body) <= max_bytes:
                message = await _receive(receive, timeout_s)
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise _too_slow(timeout_s) from None
    raise _too_large(max_bytes)


async def _receive(receive: Receive, timeout_s: float) -> Any:
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError:
        raise _too_slow(timeout_s) from None
    if message["type"] == "http.disconnect":
        raise RequestCancelled("The client went away.")
    return message


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than {max_bytes} bytes.")


def _too_slow(timeout_s: float) -> HttpError:
    return HttpError(408, "request_timeout", f"The request body did not arrive within {timeout_s:g} s.")


def parse_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """One JSON document of a declared type. Raises `InvalidRequest` with the path of the offending field as `param`.

    NaN, infinities, numbers out of range, lone surrogates, invalid UTF-8 and nesting beyond the interpreter's limit are refused by the
    decoder; of a key that comes twice the last one counts.
    """
    if not body:
        raise InvalidRequest("The request body is empty; a JSON object is expected.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None


def _explain(message: str) -> InvalidRequest:
    found = _PATH.search(message) or _KEY_PATH.search(message)
    path = found.group(1) if found is not None else ""
    what = message[: found.start()] if found is not None else message
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        name = ".".join(part for part in (path, unknown.group(1)) if part)
        return UnknownField(f"Unknown field {name!r}.", param=name)
    missing = _MISSING.match(what)
    if missing is not None:
        name = ".".join(part for part in (path, missing.group(1)) if part)
        return InvalidRequest(f"The field {name!r} is required.", param=name)
    what = what.replace("`", "'").replace(" | null", "")
    return InvalidRequest(f"{path}: {what}." if path else f"{what}.", param=path or None)

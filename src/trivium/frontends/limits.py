"""Reading a request: bounded in size and time before anything is allocated for it, and parsed by one guarded function."""

from __future__ import annotations

import asyncio
import re
from typing import Final, TypeVar

import msgspec

from trivium.errors import InvalidRequest, PayloadTooLarge, RequestCancelled, UnknownField
from trivium.frontends.asgi import Receive, Scope, header
from trivium.frontends.errors import HttpError

T = TypeVar("T")

MAX_LENGTH_DIGITS: Final = 20
"""As many as 64 bits need; zeros in front count."""
_PATH = re.compile(r" - at `\$?\.?([^`]*)`$")
_KEY_PATH = re.compile(r" - at `key` in `\$?\.?([^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*?)`", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*?)`")


class MalformedBody(InvalidRequest):
    """No JSON at all, where any other `InvalidRequest` is JSON that says something wrong."""


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float, allows_compression: bool = False) -> bytes:
    """Raises `PayloadTooLarge`, `RequestCancelled` when the client went away, and `HttpError` 408 or 415.

    With `allows_compression` the caller looks at Content-Encoding itself.
    """
    encoding = None if allows_compression else header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
        raise HttpError(415, "unsupported_content_encoding", "Compressed request bodies are not accepted; send the body as it is.")
    length = header(scope, b"content-length")
    if length is not None and len(length) > MAX_LENGTH_DIGITS:
        raise HttpError(400, "malformed_http", f"Content-Length has more than {MAX_LENGTH_DIGITS} digits.")
    if length is not None and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise HttpError(408, "request_timeout", f"The request body did not arrive within {timeout_s:g} s.") from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("The client went away.")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than {max_bytes} bytes.")


def parse_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """One JSON document of a declared type. Raises `InvalidRequest` with the path of the offending field as `param`.

    NaN, infinities, numbers out of range, lone surrogates, invalid UTF-8 and nesting beyond the interpreter's limit are refused by the
    decoder; of a key that comes twice the last one counts.
    """
    if not body:
        raise MalformedBody("The request body is empty; a JSON object is expected.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except msgspec.DecodeError as error:
        raise MalformedBody(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise MalformedBody("The request body is nested too deeply.") from None


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

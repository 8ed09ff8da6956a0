"""gzip and deflate for bodies, bounded in what they may become."""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from trivium.errors import InvalidRequest, PayloadTooLarge
from trivium.frontends.asgi import Headers
from trivium.frontends.errors import HttpError

LEVEL: Final = 1
"""The fastest: tensors are large and seldom compress well."""
_WINDOWS: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"x-gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class UnsupportedEncoding(HttpError):
    def __init__(self) -> None:
        super().__init__(501, "unsupported_content_encoding", "Unsupported compression type")


def decompress(body: bytes, encoding: bytes, *, max_bytes: int) -> bytes:
    """Raises `UnsupportedEncoding` (501), `PayloadTooLarge`, or `InvalidRequest` for what is not compressed data."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    window = _WINDOWS.get(name)
    if window is None:
        raise UnsupportedEncoding
    stream = zlib.decompressobj(window)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error:
        raise InvalidRequest(f"The request body is not valid {name.decode()} data.") from None
    if len(data) > max_bytes:
        raise PayloadTooLarge(f"The request body is larger than {max_bytes} bytes when decompressed.")
    if not stream.eof:
        raise InvalidRequest(f"The request body is cut off: its {name.decode()} data has no end.")
    return data


def compress(body: bytes, accepted: bytes) -> tuple[bytes, Headers]:
    """The body as the client likes it best, and the headers that say so."""
    names = [part.split(b";", 1)[0].strip().lower() for part in accepted.split(b",") if not part.replace(b" ", b"").endswith(b";q=0")]
    for name in names:
        if name in (b"gzip", b"x-gzip"):
            return gzip.compress(body, LEVEL, mtime=0), [(b"content-encoding", b"gzip")]
        if name == b"deflate":
            return zlib.compress(body, LEVEL), [(b"content-encoding", b"deflate")]
    return body, []

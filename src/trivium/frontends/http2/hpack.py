"""HPACK (RFC 7541): header blocks to headers, with the table the peer builds up on this side; and headers to blocks, without any table.

A client says the same of each of its requests: what a block of bytes meant is remembered until the table changes, so that all requests but
the first few cost one look into a dictionary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from trivium.frontends.http2 import huffman
from trivium.frontends.http2.errors import CompressionError

Headers = tuple[tuple[bytes, bytes], ...]

TABLE_SIZE: Final = 4096
"""Bytes of the dynamic table, as the RFC counts them; what SETTINGS say if they say nothing."""
ENTRY_OVERHEAD: Final = 32
_MAX_INTEGER_BYTES: Final = 5
_MAX_REMEMBERED: Final = 64
_MAX_REMEMBERED_BYTES: Final = 256
"""Of a block; a client's usual one has a byte for each header."""

_STATIC: Final = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", status) for status in (b"200", b"204", b"206", b"304", b"400", b"404", b"500")),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in (
            *(b"accept-language", b"accept-ranges", b"accept", b"access-control-allow-origin", b"age", b"allow", b"authorization"),
            *(b"cache-control", b"content-disposition", b"content-encoding", b"content-language", b"content-length", b"content-location"),
            *(b"content-range", b"content-type", b"cookie", b"date", b"etag", b"expect", b"expires", b"from", b"host", b"if-match"),
            *(b"if-modified-since", b"if-none-match", b"if-range", b"if-unmodified-since", b"last-modified", b"link", b"location"),
            *(b"max-forwards", b"proxy-authenticate", b"proxy-authorization", b"range", b"referer", b"refresh", b"retry-after", b"server"),
            *(b"set-cookie", b"strict-transport-security", b"transfer-encoding", b"user-agent", b"vary", b"via", b"www-authenticate"),
        )
    ),
)
"""RFC 7541, appendix A; indices count from 1."""


class Decoder:
    """One direction of one connection."""

    def __init__(self, *, max_list_bytes: int) -> None:
        """`max_list_bytes`: of names and values of one block, with 32 for each."""
        self._max_list_bytes = max_list_bytes
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._table_bytes = 0
        self._limit = TABLE_SIZE
        self._remembered: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """Raises `CompressionError`; a block with too much in it ends the connection as well."""
        known = self._remembered.get(block)
        if known is not None:
            return known
        headers, has_changed = self._decode(block)
        if has_changed:
            self._remembered.clear()
        elif len(block) <= _MAX_REMEMBERED_BYTES and len(self._remembered) < _MAX_REMEMBERED:
            self._remembered[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[Headers, bool]:
        found: list[tuple[bytes, bytes]] = []
        size = position = 0
        has_changed = False
        while position < len(block):
            first = block[position]
            if first & 0x80:
                index, position = _integer(block, position, 7)
                header = self._entry(index)
            elif first & 0xE0 == 0x20:
                if found:
                    raise CompressionError("the table's size changes inside a header block")
                limit, position = _integer(block, position, 5)
                self._resize(limit)
                has_changed = True
                continue
            else:
                is_indexed = bool(first & 0x40)
                index, position = _integer(block, position, 6 if is_indexed else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                header = (name, value)
                if is_indexed:
                    self._add(header)
                    has_changed = True
            size += len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
            if size > self._max_list_bytes:
                raise CompressionError("the headers are too large")
            found.append(header)
        return tuple(found), has_changed

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if not 1 <= index <= len(_STATIC) + len(self._table):
            raise CompressionError("a header names an entry that isn't there")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._table[index - len(_STATIC) - 1]

    def _add(self, header: tuple[bytes, bytes]) -> None:
        size = len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
        self._evict(self._limit - size)
        if size <= self._limit:
            self._table.appendleft(header)
            self._table_bytes += size

    def _resize(self, limit: int) -> None:
        if limit > TABLE_SIZE:
            raise CompressionError("the header table grows beyond what was agreed on")
        self._limit = limit
        self._evict(limit)

    def _evict(self, limit: int) -> None:
        while self._table and self._table_bytes > limit:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_OVERHEAD


def encode(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of literals that neither side remembers: it can be made once and sent to anybody."""
    parts: list[bytes] = []
    for name, value in headers:
        parts += (b"\x00", _length(len(name)), name, _length(len(value)), value)
    return b"".join(parts)


def _length(size: int) -> bytes:
    if size < 0x7F:
        return bytes((size,))
    found = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    found.append(size)
    return bytes(found)


def _integer(block: bytes, position: int, num_bits: int) -> tuple[int, int]:
    """An integer whose first byte has `num_bits` of it, and where it ends."""
    mask = (1 << num_bits) - 1
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        if position == len(block):
            break
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise CompressionError("a header's number is cut off or too large")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise CompressionError("a header block is cut off")
    is_huffman = bool(block[position] & 0x80)
    length, start = _integer(block, position, 7)
    end = start + length
    if end > len(block):
        raise CompressionError("a header block is cut off")
    data = block[start:end]
    return (huffman.decode(data) if is_huffman else data), end

"""HPACK's Huffman code (RFC 7541, appendix B). The code is canonical: its lengths, by symbol, say all of it."""

from __future__ import annotations

from typing import Final

from trivium.frontends.http2.errors import CompressionError

EOS: Final = 256
_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"  # controls
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"  # space to ?
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"  # @ to _
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"  # ` to DEL
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)


def _codes() -> dict[tuple[int, int], int]:
    """Symbol by length and code: codes of one length count up, in the order of their symbols, from where the shorter ones ended."""
    found: dict[tuple[int, int], int] = {}
    code = 0
    previous = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_LENGTHS)):
        code <<= length - previous
        found[length, code] = symbol
        previous = length
        code += 1
    return found


_SYMBOLS: Final = _codes()
_MIN_LENGTH: Final = min(_LENGTHS)
_MAX_PADDING: Final = 7


def decode(data: bytes) -> bytes:
    """Raises `CompressionError` for the end-of-string symbol and for padding that isn't the start of it."""
    found = bytearray()
    code = length = 0
    symbols = _SYMBOLS
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | (byte >> shift & 1)
            length += 1
            if length < _MIN_LENGTH:
                continue
            symbol = symbols.get((length, code))
            if symbol is not None:
                if symbol == EOS:
                    raise CompressionError("a header holds the end-of-string symbol")
                found.append(symbol)
                code = length = 0
    if length > _MAX_PADDING or code != (1 << length) - 1:
        raise CompressionError("a header's padding is wrong")
    return bytes(found)

"""Header compression: the RFC's own examples, and an independent implementation."""

from __future__ import annotations

import contextlib

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.frontends.http2 import huffman
from trivium.frontends.http2.errors import CompressionError
from trivium.frontends.http2.hpack import Decoder, encode

HEADER = st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=80))
REQUESTS = (
    # RFC 7541, appendix C.4: three requests on one connection, with Huffman coding.
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]),
    (
        "828684be5886a8eb10649cbf",
        [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"), (b"cache-control", b"no-cache")],
    ),
    (
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        [
            *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com")),
            (b"custom-key", b"custom-value"),
        ],
    ),
)


def _decoder(max_list_bytes: int = 1 << 20) -> Decoder:
    return Decoder(max_list_bytes=max_list_bytes)


def test_the_rfcs_requests_are_read() -> None:
    decoder = _decoder()
    for block, headers in REQUESTS:
        assert list(decoder.decode(bytes.fromhex(block))) == headers


@given(st.lists(st.tuples(st.lists(HEADER, max_size=8), st.booleans(), st.sampled_from([None, None, 0, 100, 4096])), max_size=12))
@settings(max_examples=60, deadline=None)
def test_what_another_encoder_says_is_read(blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    encoder, decoder = hpack.Encoder(), _decoder()
    for headers, uses_huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        # Twice: the second block is one of indices, and remembered.
        for _ in range(2):
            assert list(decoder.decode(encoder.encode(headers, huffman=uses_huffman))) == headers


@given(st.lists(HEADER, max_size=8))
@settings(max_examples=60, deadline=None)
def test_what_we_say_is_read_by_another_decoder(headers: list[tuple[bytes, bytes]]) -> None:
    assert [tuple(header) for header in hpack.Decoder().decode(encode(headers), raw=True)] == headers


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_headers_or_an_error(block: bytes) -> None:
    with contextlib.suppress(CompressionError):
        _decoder().decode(block)


def test_a_remembered_block_is_forgotten_when_the_table_changes() -> None:
    decoder = _decoder()
    first, second = b"\x40\x01a\x011", b"\x40\x01b\x012"
    decoder.decode(first)
    newest = b"\xbe"
    assert decoder.decode(newest) == ((b"a", b"1"),)
    decoder.decode(second)
    assert decoder.decode(newest) == ((b"b", b"2"),)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "an entry that isn't there"),
        (b"\xbe", "an entry that isn't there"),
        (b"\x00\x05ab", "cut off"),
        (b"\x40", "cut off"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x01", "cut off or too large"),
        (b"\x3f\xe2\x1f", "grows beyond"),
        (b"\x82\x20", "inside a header block"),
        (b"\x00\x81\x00\x01x", "padding is wrong"),
        (b"\x00\x84\xff\xff\xff\xff\x01x", "end-of-string"),
    ],
)
def test_broken_blocks_say_what_is_wrong(block: bytes, why: str) -> None:
    with pytest.raises(CompressionError, match=why):
        _decoder().decode(block)


def test_a_bomb_of_indices_is_refused() -> None:
    """A large entry in the table, and then one byte for each time it is meant."""
    decoder = _decoder(max_list_bytes=16_384)
    decoder.decode(b"\x40\x01a" + b"\x7f\x81\x1e" + b"x" * (0x7F + 0x1E * 128 + 1))
    with pytest.raises(CompressionError, match="too large"):
        decoder.decode(b"\xbe" * 10_000)


def test_huffman_code_is_complete() -> None:
    """Kraft's sum of one: every string of bits is a prefix of some symbols, and of one only."""
    assert sum(2.0**-length for length, _ in huffman._SYMBOLS) == 1.0
    assert len(huffman._SYMBOLS) == 257

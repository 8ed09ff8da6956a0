"""The bytes a token stands for, for the two kinds of decoders that work on bytes: byte-level BPE and SentencePiece with byte fallback.

Where the bytes are known, decoding a stream is exact: bytes are joined and only whole characters come out (`detokenizer`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

SPACE: Final = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ByteDecoder:
    """`to_bytes` turns a token's text as the vocabulary spells it into bytes."""

    to_bytes: Callable[[str], bytes]
    strip_left: int = 0
    """Spaces dropped from the start of a whole text."""


def byte_decoder_of(tokenizer: Tokenizer) -> ByteDecoder | None:
    """None if the tokenizer's decoder is of another kind, whose text of a token depends on its neighbours."""
    if tokenizer.decoder is None:
        return None
    steps = _steps(json.loads(tokenizer.decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteDecoder(_byte_level)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _replaces_space(steps[0]):
        if kinds[3:] == []:
            return ByteDecoder(_sentencepiece)
        if kinds[3:] == ["Strip"] and steps[3]["content"] == " " and steps[3]["stop"] == 0:
            return ByteDecoder(_sentencepiece, strip_left=steps[3]["start"])
    return None


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for child in decoder["decoders"] for step in _steps(child)] if decoder["type"] == "Sequence" else [decoder]


def _replaces_space(step: dict[str, Any]) -> bool:
    return step["pattern"] == {"String": SPACE} and step["content"] == " "


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map from printable characters to bytes: a byte that is no printable Latin-1 character is spelled by one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET: Final = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """An added token may have characters outside the alphabet; then it stands for itself."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(SPACE, " ").encode()

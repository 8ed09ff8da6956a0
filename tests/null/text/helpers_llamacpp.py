"""llama.cpp's tokenization of a `smollm` vocabulary, written down a second time and naively: what our token ids must equal.

Rules (src/llama-vocab.cpp, unicode.cpp): special tokens are cut out of the text; what is left is split at every digit, then by GPT-2's
expression; each word's bytes are spelled in GPT-2's alphabet and the neighbours with the lowest merge rank are merged, leftmost first.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise

WHITE_SPACE = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def kind_of(char: str) -> str:
    if char in WHITE_SPACE:
        return "space"
    category = unicodedata.category(char)
    return {"L": "letter", "N": "number"}.get(category[0], "other")


def split_digits(text: str) -> list[str]:
    pieces: list[str] = []
    start = 0
    for i, char in enumerate(text):
        if kind_of(char) == "number":
            pieces += [text[start:i], char]
            start = i + 1
    return [piece for piece in [*pieces, text[start:]] if piece]


def split_words(text: str) -> list[str]:
    words: list[str] = []
    i = 0
    while i < len(text):
        end = next((i + len(each) for each in CONTRACTIONS if text.startswith(each, i)), 0) or _end_of_word(text, i)
        words.append(text[i:end])
        i = end
    return words


def _end_of_word(text: str, i: int) -> int:
    first = i + 1 if text[i] == " " and i + 1 < len(text) and kind_of(text[i + 1]) != "space" else i
    kind = kind_of(text[first])
    end = first
    while end < len(text) and kind_of(text[end]) == kind:
        end += 1
    if kind == "space" and end < len(text) and end - first > 1:
        return end - 1
    return end


def byte_spelling() -> list[str]:
    """One character per byte: itself if Latin-1 prints it, else the next one from U+0100 on."""
    spelling: list[str] = []
    extra = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            spelling.append(chr(byte))
        else:
            spelling.append(chr(extra))
            extra += 1
    return spelling


class LlamaCppTokenizer:
    def __init__(self, tokens: list[str], merges: list[str], special: list[str]) -> None:
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ", 1)): rank for rank, merge in enumerate(merges)}
        self.special = sorted(special, key=len, reverse=True)
        self.spelling = byte_spelling()

    def encode(self, text: str) -> list[int]:
        position, token = min(((text.find(each), each) for each in self.special if each in text), default=(-1, ""), key=lambda found: found[0])
        if position >= 0:
            after = text[position + len(token) :]
            return [*self._encode_plain(text[:position]), self.ids[token], *self.encode(after)]
        return self._encode_plain(text)

    def _encode_plain(self, text: str) -> list[int]:
        words = [word for piece in split_digits(text) for word in split_words(piece)]
        return [token_id for word in words for token_id in self._merge("".join(self.spelling[byte] for byte in word.encode()))]

    def _merge(self, word: str) -> list[int]:
        symbols = list(word)
        while True:
            pairs = [(self.ranks.get((left, right)), i) for i, (left, right) in enumerate(pairwise(symbols))]
            best = min(((rank, i) for rank, i in pairs if rank is not None), default=None)
            if best is None:
                return [self.ids[symbol] for symbol in symbols]
            i = best[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]

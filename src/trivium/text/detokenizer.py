"""`IncrementalDetokenizer`: the text of a growing list of tokens, piece by piece, never half a character.

Where a token's bytes are known (`token_bytes`) they go through an incremental UTF-8 decoder: exact, and the same work for every
token. Other decoders (WordPiece, Metaspace, …) are asked for the text of a short window before and after each token, and the
difference is new. That text need not grow by appending: then the new tokens are decoded on their own, so nothing is lost or repeated.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from trivium.text.token_bytes import ByteDecoder

REPLACEMENT: Final = "\ufffd"
CONTEXT_TOKENS: Final = 6
"""Tokens before the first one that may change how it reads: a character has at most four bytes, and tokens may be empty."""
MAX_HELD_TOKENS: Final = 16
"""A window that still ends in U+FFFD after so many tokens is no unfinished character."""


class Vocabulary(Protocol):
    """What is needed of a `Tokenizer`, which says what each part means."""

    byte_decoder: ByteDecoder | None
    special_ids: frozenset[int]
    added_tokens: dict[int, str]

    def token_bytes(self, token_id: int) -> bytes: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class IncrementalDetokenizer:
    """Text of the tokens that follow `prompt_ids`. Feed each token with `push`, then call `flush` once."""

    def __init__(
        self,
        tokenizer: Vocabulary,
        *,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        if tokenizer.byte_decoder is not None:
            self._stream: _ByteStream | _WindowStream = _ByteStream(tokenizer, skip_special=skip_special_tokens)
        else:
            joined = not skip_special_tokens and not spaces_between_special_tokens
            self._stream = _WindowStream(tokenizer, skip_special=skip_special_tokens, join_special=joined)
        self._stream.prime(prompt_ids[-CONTEXT_TOKENS:])

    def push(self, token_id: int) -> str:
        """New text that is final; empty while a character is unfinished. Never raises."""
        return self._stream.push(token_id)

    def flush(self) -> str:
        """What is left at the end; an unfinished character is dropped."""
        return self._stream.flush()


class _ByteStream:
    def __init__(self, tokenizer: Vocabulary, *, skip_special: bool) -> None:
        assert tokenizer.byte_decoder is not None
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_left = tokenizer.byte_decoder.strip_left

    def prime(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self.push(token_id)
        if len(ids) == CONTEXT_TOKENS:
            self._strip_left = 0  # so many tokens have text before or among them

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        text = self._decoder.decode(self._bytes_of(token_id))
        return self._stripped(text) if self._strip_left and text else text

    def _stripped(self, text: str) -> str:
        """Only spaces at the very start of the whole text are dropped."""
        rest = text.lstrip(" ")
        dropped = min(len(text) - len(rest), self._strip_left)
        self._strip_left = 0 if rest else self._strip_left - dropped
        return text[dropped:]

    def flush(self) -> str:
        self._decoder.reset()
        return ""


class _WindowStream:
    """Two offsets into the tokens: up to `_read` their text is out; `_start` is where the window begins that gives it context."""

    def __init__(self, tokenizer: Vocabulary, *, skip_special: bool, join_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._names = tokenizer.added_tokens if join_special else {}
        self._last_was_added = False
        self._window: list[int] = []
        self._num_read = 0

    def prime(self, ids: Sequence[int]) -> None:
        """The end of the prompt is context; a character that it leaves unfinished belongs to the output."""
        self._window = list(ids)
        candidates = range(len(ids), max(len(ids) - 4, -1), -1)
        complete = (n for n in candidates if not self._decode(self._window[:n]).endswith(REPLACEMENT))
        self._num_read = next(complete, len(ids))

    def push(self, token_id: int) -> str:
        name = self._names.get(token_id)
        joined = name is not None and self._last_was_added
        self._last_was_added = name is not None
        self._window.append(token_id)
        if joined:
            self._advance()
            return name or ""
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._window) - self._num_read < MAX_HELD_TOKENS:
            return ""
        if text:
            self._advance()
        elif len(self._window) - self._num_read >= MAX_HELD_TOKENS:
            del self._window[self._num_read :]
        return text

    def _new_text(self) -> str:
        before, after = self._decode(self._window[: self._num_read]), self._decode(self._window)
        if after.startswith(before):
            return after[len(before) :]
        return self._decode(self._window[self._num_read :])

    def _advance(self) -> None:
        """Tokens just read become the context of the next ones."""
        self._window = self._window[self._num_read :][-MAX_HELD_TOKENS:]
        self._num_read = len(self._window)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)

    def flush(self) -> str:
        text = self._new_text().rstrip(REPLACEMENT)
        self._advance()
        return text


def decode_with_runs(tokenizer: Vocabulary, ids: Sequence[int]) -> str:
    """All of `ids` with special tokens, those that follow one another without spaces between them."""
    stream = _WindowStream(tokenizer, skip_special=False, join_special=True)
    return "".join([*(stream.push(token_id) for token_id in ids), stream.flush()])

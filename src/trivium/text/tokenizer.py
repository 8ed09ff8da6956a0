"""`Tokenizer`: text to token ids and back, from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import tokenizers
from tokenizers import AddedToken

from trivium.errors import InvalidRequest, ModelLoadError, PromptTooLong
from trivium.sources.gguf_file import GGUFFile
from trivium.sources.paths import MAX_JSON_BYTES, child_path, read_json_child
from trivium.text.detokenizer import decode_with_runs
from trivium.text.gguf_vocab import token_named, tokenizer_from_gguf
from trivium.text.panics import reraise
from trivium.text.token_bytes import byte_decoder_of
from trivium.types import TextSpan

T = TypeVar("T")

MAX_TEXT_CHARS: Final = 1 << 26
"""Longer texts are refused whatever the context length."""
LONG_IDS: Final = 4096
ROLES: Final = ("bos", "eos", "pad", "unk")
_TOKEN_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


class Tokenizer:
    """One model's vocabulary. Immutable once made; its methods may be called from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
        unk_token: str | None = None,
        other_special_tokens: Sequence[str] = (),
    ) -> None:
        """Named special tokens must be in the vocabulary; they are hidden by `skip_special_tokens` from now on."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.pad_token = pad_token
        self.unk_token = unk_token
        named = [token for token in (bos_token, eos_token, pad_token, unk_token, *other_special_tokens) if token is not None]
        self._mark_special(dict.fromkeys(named))
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in added.items() if token.special)
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        """Tokens that are matched in a text before it is split: special ones and others."""
        self.byte_decoder = byte_decoder_of(backend)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = 1 + max(vocab.values(), default=-1)
        """One more than the largest token id; a model's logits may be wider."""
        self._max_token_chars = max(map(len, vocab), default=1)
        self._bytes: list[bytes | None] = [None] * self.vocab_size

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Reads tokenizer.json and, for the roles of special tokens, tokenizer_config.json and special_tokens_map.json.

        Raises `ModelLoadError`, naming the file, for what is missing or can't be used.
        """
        path = child_path(folder, "tokenizer.json")
        if path is None:
            raise ModelLoadError(f"{folder} has no tokenizer.json. (A SentencePiece tokenizer.model alone is not read: save it with transformers.)")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} is larger than {MAX_JSON_BYTES} bytes.")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except BaseException as error:
            reraise(error, lambda message: ModelLoadError(f"{path} can't be used: {message}"))
        settings = read_json_child(folder, "tokenizer_config.json") or {}
        _add_missing_tokens(backend, settings)
        known = {role: token for role, token in roles_in_folder(folder).items() if backend.token_to_id(token) is not None}
        others = [token for token in _others(settings) if backend.token_to_id(token) is not None]
        return cls(backend, **known, other_special_tokens=others)

    def to_json(self) -> str:
        """In the form of a tokenizer.json."""
        return self._backend.to_str()

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> Tokenizer:
        """Raises `ModelLoadError` for a vocabulary that is missing or of an unknown kind."""
        return cls(
            tokenizer_from_gguf(gguf),
            bos_token=token_named(gguf, "bos"),
            eos_token=token_named(gguf, "eos"),
            pad_token=token_named(gguf, "padding"),
            unk_token=token_named(gguf, "unknown"),
        )

    @property
    def bos_token_id(self) -> int | None:
        return self._id_or_none(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id_or_none(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        return self._id_or_none(self.pad_token)

    @property
    def unk_token_id(self) -> int | None:
        return self._id_or_none(self.unk_token)

    @property
    def special_tokens(self) -> dict[str, str]:
        """`bos_token` and so on, as chat templates name them; only those the model has."""
        named = {"bos_token": self.bos_token, "eos_token": self.eos_token, "pad_token": self.pad_token, "unk_token": self.unk_token}
        return {name: token for name, token in named.items() if token is not None}

    def num_special_tokens_to_add(self) -> int:
        return self._backend.num_special_tokens_to_add(False)

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; special tokens spelled out in it count as such.

        A text that must take more than `max_tokens` is refused, by its length where that tells, before any work is done on it:
        `PromptTooLong`. Raises `InvalidRequest` for text that is not valid Unicode.
        """
        self._check_text(text, max_tokens)
        # The batch call, unlike the single one, lets other threads run and computes no offsets.
        ids = self._guarded(lambda: self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        _check_count(len(ids), max_tokens)
        return ids

    def encode_spans(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TextSpan]:
        """As `encode`, with the characters that each token stands for; of a character in several tokens each has all."""
        self._check_text(text, max_tokens)
        found = self._guarded(lambda: self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0])
        _check_count(len(found.ids), max_tokens)
        return [TextSpan(token_id, start, stop) for token_id, (start, stop) in zip(found.ids, found.offsets, strict=True)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True) -> str:
        """Text of `ids`; ids outside the vocabulary stand for nothing. A character that is cut off becomes U+FFFD.

        Raises `InvalidRequest` for ids that are no token ids at all (negative, or beyond 32 bits).
        """
        if self.byte_decoder is None and not skip_special_tokens and not spaces_between_special_tokens:
            return decode_with_runs(self, ids)
        try:
            if len(ids) > LONG_IDS:
                # The batch call, unlike the single one, lets other threads run.
                return self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            reraise(error, lambda message: InvalidRequest(f"The tokenizer fails on these token ids: {message}", param="prompt"))

    def token_to_str(self, token_id: int) -> str:
        """Text of the token on its own, for logprobs; part of a character becomes U+FFFD, a special token its name."""
        if self.byte_decoder is None:
            return self.decode([token_id], skip_special_tokens=False)
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, a leading space included; b"" for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._make_bytes(token_id)
        return found

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling."""
        return self._backend.id_to_token(token_id) if token_id >= 0 else None

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def _guarded(self, encode: Callable[[], T]) -> T:
        """Raises `InvalidRequest` where the tokenizer panics."""
        try:
            return encode()
        except BaseException as error:
            reraise(error, lambda message: InvalidRequest(f"The tokenizer fails on this text: {message}", param="prompt"))

    def _check_text(self, text: str, max_tokens: int | None) -> None:
        if len(text) > MAX_TEXT_CHARS:
            raise PromptTooLong(f"The text has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed.", param="prompt")
        if max_tokens is not None and len(text) > max_tokens * self._max_token_chars:
            raise PromptTooLong(f"The text has {len(text)} characters, which can't fit into {max_tokens} tokens.", param="prompt")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("The text contains a lone surrogate, which is no character.", param="prompt") from None

    def _make_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        return self.decode([token_id], skip_special_tokens=False).encode() if self.byte_decoder is None else self.byte_decoder.to_bytes(token)

    def _id_or_none(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)

    def _mark_special(self, tokens: dict[str, None]) -> None:
        special = {token.content for token in self._backend.get_added_tokens_decoder().values() if token.special}
        missing = [AddedToken(token, special=True, normalized=False) for token in tokens if token not in special]
        self._backend.add_special_tokens(missing)  # pyright: ignore[reportUnknownMemberType]


def _check_count(num_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and num_tokens > max_tokens:
        raise PromptTooLong(f"The text has {num_tokens} tokens; at most {max_tokens} are allowed.", param="prompt")


def _add_missing_tokens(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    """Tokens that tokenizer_config.json lists and tokenizer.json lacks, in the order of their ids."""
    listed = settings.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    by_id = {int(key): value for key, value in cast("dict[str, Any]", listed).items() if key.isdecimal()}
    for _, value in sorted(by_id.items()):
        content = _content(value)
        if content and isinstance(value, dict) and backend.token_to_id(content) is None:
            known = {flag: bool(cast("dict[str, Any]", value)[flag]) for flag in _TOKEN_FLAGS if flag in value}
            backend.add_tokens([AddedToken(content, **known)])  # pyright: ignore[reportUnknownMemberType]


def roles_in_folder(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token`, `pad_token`, `unk_token`, as far as the folder's files name them."""
    return _roles(read_json_child(folder, "special_tokens_map.json") or {}) | _roles(read_json_child(folder, "tokenizer_config.json") or {})


def _roles(settings: dict[str, Any]) -> dict[str, str]:
    """Which token begins, ends and pads a text: a string or an object with `content`, under `bos_token` and so on."""
    contents = {f"{role}_token": _content(settings.get(f"{role}_token")) for role in ROLES}
    return {name: content for name, content in contents.items() if content is not None}


def _content(value: Any) -> str | None:
    content = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _others(settings: dict[str, Any]) -> list[str]:
    """A list, or in newer files an object of named ones."""
    listed: Any = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
    if isinstance(listed, dict):
        listed = list(cast("dict[str, Any]", listed).values())
    values = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [content for content in map(_content, values) if content is not None]

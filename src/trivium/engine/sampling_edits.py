"""Logits that change at listed ids: allowed tokens, bad words, stop ids before min_tokens, logit bias.

The lists of all scheduled rows are flattened into one index per kind, kept as long as the same rows come in the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.staging import Staging
from trivium.scheduling.step import NewRow

Ints = npt.NDArray[np.int64]
ANY = -1
"""In a bad word's prefix: matches every token."""
NO_TOKEN = -2
"""In a row's recent tokens: nothing there yet; matches nothing but `ANY`."""


@dataclass(frozen=True, slots=True)
class RowEdits:
    """One request's lists; empty arrays where it has none. Ids outside the vocabulary are left out: no such token can be drawn anyway, and in the
    flattened logits they would be another line's."""

    allowed: Ints | None
    stops: Ints
    bias_ids: Ints
    bias_values: npt.NDArray[np.float32]
    word_prefixes: tuple[tuple[int, ...], ...]
    word_ends: Ints

    @staticmethod
    def of(new_row: NewRow, vocab_size: int) -> RowEdits:
        params = new_row.params
        words = [word for word in new_row.bad_words_token_ids if word and 0 <= word[-1] < vocab_size]
        bias = {token: value for token, value in (params.logit_bias or {}).items() if 0 <= token < vocab_size}

        return RowEdits(
            allowed=_ids(params.allowed_token_ids, vocab_size) if params.allowed_token_ids else None,
            stops=_ids(new_row.stop_token_ids if params.min_tokens else [], vocab_size),
            bias_ids=_ids(list(bias), vocab_size),
            bias_values=np.array(list(bias.values()), dtype=np.float32),
            word_prefixes=tuple(tuple(word[:-1]) for word in words),
            word_ends=_ids([word[-1] for word in words], vocab_size),
        )

    @property
    def is_empty(self) -> bool:
        return self.allowed is None and not (len(self.stops) or len(self.bias_ids) or len(self.word_ends))


def _ids(values: list[int], vocab_size: int) -> Ints:
    ids = np.array(values, dtype=np.int64)
    return ids[(ids >= 0) & (ids < vocab_size)]


class _Flattened:
    """Device tensors made from host lists, kept while `key` stays the same."""

    def __init__(self, build: Callable[[Any], tuple[Tensor, ...]]) -> None:
        self._build = build
        self._key: Hashable = None
        self._tensors: tuple[Tensor, ...] = ()

    def get(self, key: Hashable, members: Any) -> tuple[Tensor, ...]:
        if key != self._key:
            self._tensors = self._build(members)
            self._key = key
        return self._tensors


@dataclass(frozen=True, slots=True)
class _Member:
    line: int
    row: int
    version: int
    edits: RowEdits


class EditTable:
    """Edits of all rows, and the last few sampled tokens of rows with bad words, on the device since the host does not know them yet."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device, staging: Staging) -> None:
        self._vocab_size = vocab_size
        self._num_rows = max_num_seqs + 1
        self._device = device
        self._staging = staging
        self._edits: dict[int, tuple[int, RowEdits]] = {}
        self._version = 0
        self._recent = torch.full((self._num_rows, 0), NO_TOKEN, dtype=torch.int64, device=device)  # [rows, longest prefix], newest last
        self._allowed = _Flattened(self._build_allowed)
        self._words = _Flattened(self._build_words)
        self._stops = _Flattened(self._build_stops)
        self._bias = _Flattened(self._build_bias)

    def add_row(self, new_row: NewRow) -> None:
        edits = RowEdits.of(new_row, self._vocab_size)
        if edits.is_empty:
            self._edits.pop(new_row.row, None)
            return
        self._version += 1
        self._edits[new_row.row] = (self._version, edits)
        longest = max((len(prefix) for prefix in edits.word_prefixes), default=0)
        if longest:
            self._remember(new_row, longest)

    def _remember(self, new_row: NewRow, longest: int) -> None:
        width = self._recent.shape[1]
        if longest > width:
            older = torch.full((self._num_rows, longest - width), NO_TOKEN, dtype=torch.int64, device=self._device)
            self._recent = torch.cat((older, self._recent), dim=1)
            width = longest
        tail = new_row.output_token_ids[-width:]
        recent = np.full(width, NO_TOKEN, dtype=np.int64)
        recent[width - len(tail) :] = tail
        self._recent[new_row.row].copy_(self._staging.ship(recent))

    def apply(self, logits: Tensor, rows: list[int], lines: list[int], min_token_lines: list[int]) -> None:
        """In place on logits [S, V], contiguous. `lines`: lines whose rows have edits; `min_token_lines`: lines still short of their min_tokens."""
        members, short = self._members(rows, lines), self._members(rows, min_token_lines)
        flat = logits.view(-1)
        if allowed := [member for member in members if member.edits.allowed is not None]:
            index, allowed_lines = self._allowed.get(_key(allowed), allowed)
            values = flat.index_select(0, index)
            logits.index_fill_(0, allowed_lines, -torch.inf)
            flat.index_copy_(0, index, values)
        if words := [member for member in members if len(member.edits.word_ends)]:
            index, word_rows, prefixes = self._words.get((self._recent.shape[1], *_key(words)), words)
            matches = ((prefixes == self._recent.index_select(0, word_rows)) | (prefixes == ANY)).all(1)
            flat.index_add_(0, index, torch.zeros_like(matches, dtype=torch.float32).masked_fill_(matches, -torch.inf))
        if short := [member for member in short if len(member.edits.stops)]:
            flat.index_fill_(0, self._stops.get(_key(short), short)[0], -torch.inf)
        if bias := [member for member in members if len(member.edits.bias_ids)]:
            index, values = self._bias.get(_key(bias), bias)
            flat.index_add_(0, index, values)

    def _members(self, rows: list[int], lines: list[int]) -> list[_Member]:
        return [_Member(line, rows[line], *self._edits[rows[line]]) for line in lines if rows[line] in self._edits]

    def record(self, rows: Tensor, token_ids: Tensor) -> None:
        """The tokens just sampled by rows with bad words; both [B] int64 on the device."""
        if self._recent.shape[1]:
            older = self._recent.index_select(0, rows)[:, 1:]
            self._recent.index_copy_(0, rows, torch.cat((older, token_ids[:, None]), dim=1))

    def _build_allowed(self, members: list[_Member]) -> tuple[Tensor, ...]:
        lines = np.array([member.line for member in members], dtype=np.int64)
        return self._flat_index(members, lambda edits: () if edits.allowed is None else edits.allowed), self._staging.ship(lines)

    def _build_stops(self, members: list[_Member]) -> tuple[Tensor, ...]:
        return (self._flat_index(members, lambda edits: edits.stops),)

    def _build_bias(self, members: list[_Member]) -> tuple[Tensor, ...]:
        values = np.concatenate([member.edits.bias_values for member in members])
        return self._flat_index(members, lambda edits: edits.bias_ids), self._staging.ship(values)

    def _build_words(self, members: list[_Member]) -> tuple[Tensor, ...]:
        width = self._recent.shape[1]
        prefixes = [(ANY,) * (width - len(prefix)) + prefix for member in members for prefix in member.edits.word_prefixes]
        rows = np.repeat([member.row for member in members], [len(member.edits.word_ends) for member in members])
        padded = np.array(prefixes, dtype=np.int64).reshape(len(prefixes), width)
        return self._flat_index(members, lambda edits: edits.word_ends), self._staging.ship(rows), self._staging.ship(padded)

    def _flat_index(self, members: list[_Member], ids: Callable[[RowEdits], npt.ArrayLike]) -> Tensor:
        """Positions in the flattened logits of each member's ids."""
        parts = [np.asarray(ids(member.edits), dtype=np.int64) + member.line * self._vocab_size for member in members]
        return self._staging.ship(np.concatenate(parts))


def _key(members: list[_Member]) -> tuple[tuple[int, int], ...]:
    return tuple((member.line, member.version) for member in members)

"""Logprobs in OpenAI's two shapes. JSON has no infinity: what is impossible reads -9999.0, as in vLLM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from trivium.service import Vocabulary
from trivium.types import Logprob, LogprobsDict

IMPOSSIBLE: Final = -9999.0


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE


def token_text(token_id: int, entry: Logprob, *, as_id: bool) -> str:
    return f"token_id:{token_id}" if as_id or entry.decoded_token is None else entry.decoded_token


def _top(entries: LogprobsDict, count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely candidates; the chosen token comes first in `entries` whatever its rank."""
    ranked = sorted(entries.items(), key=lambda item: item[1].rank or 0)
    return ranked[:count]


class CompletionLogprobs:
    """`{"tokens", "token_logprobs", "top_logprobs", "text_offset"}` of one choice; offsets run on from chunk to chunk."""

    def __init__(self, num_top: int, *, as_ids: bool) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def add(self, positions: Sequence[LogprobsDict | None], token_ids: list[int], *, first_text: str | None = None) -> dict[str, Any]:
        """`positions[i]` belongs to `token_ids[i]`; None: the first token of a prompt, which nothing predicts and which reads `first_text`."""
        shape: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for entries, token_id in zip(positions, token_ids, strict=True):
            if entries is None:
                self._add_token(shape, token_text(token_id, Logprob(0.0, decoded_token=first_text), as_id=self._as_ids), None, None)
                continue
            chosen = entries[token_id]
            top: dict[str, float] = {}
            for candidate_id, entry in [*_top(entries, self._num_top), (token_id, chosen)]:
                # Two ids may read the same: the more likely one is shown.
                top.setdefault(token_text(candidate_id, entry, as_id=self._as_ids), finite(entry.logprob))
            self._add_token(shape, token_text(token_id, chosen, as_id=self._as_ids), finite(chosen.logprob), top)
        return shape

    def _add_token(self, shape: dict[str, Any], text: str, logprob: float | None, top: dict[str, float] | None) -> None:
        shape["text_offset"].append(self._offset)
        shape["tokens"].append(text)
        shape["token_logprobs"].append(logprob)
        shape["top_logprobs"].append(top)
        self._offset += len(text)


class ChatLogprobs:
    """`{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`. `bytes` are the token's own, also where it is a part of a character."""

    def __init__(self, num_top: int, vocabulary: Vocabulary, *, as_ids: bool) -> None:
        self._num_top = num_top
        self._vocabulary = vocabulary
        self._as_ids = as_ids

    def content(self, positions: list[LogprobsDict], token_ids: list[int]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for entries, token_id in zip(positions, token_ids, strict=True):
            shown = [(token_id, entries[token_id]), *_top(entries, self._num_top)]
            spelled = self._vocabulary.token_bytes([shown_id for shown_id, _ in shown])
            chosen, *top = [self._token(shown_id, entry, raw) for (shown_id, entry), raw in zip(shown, spelled, strict=True)]
            content.append({**chosen, "top_logprobs": top})
        return content

    def _token(self, token_id: int, entry: Logprob, raw: bytes) -> dict[str, Any]:
        return {"token": token_text(token_id, entry, as_id=self._as_ids), "logprob": finite(entry.logprob), "bytes": list(raw)}


def prompt_logprobs(positions: list[LogprobsDict | None]) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token its candidates by id."""
    return [None if entries is None else {str(token_id): _prompt_entry(entry) for token_id, entry in entries.items()} for entries in positions]


def _prompt_entry(entry: Logprob) -> dict[str, Any]:
    return {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}

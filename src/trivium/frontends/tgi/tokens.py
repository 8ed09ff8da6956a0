"""Tokens as TGI shows them: `{"id", "text", "logprob", "special"}`, and the `top_n_tokens` most likely ones of a step."""

from __future__ import annotations

from typing import Any, Final

from trivium.frontends.openai.logprobs import finite
from trivium.service import Vocabulary
from trivium.types import LogprobsDict, PromptInfo, TokenEvent

EXTRA_CANDIDATES: Final = 5
"""Asked for beyond `top_n_tokens`, since what ties with the last one is shown too."""

Shape = dict[str, Any]


def token_shapes(event: TokenEvent, vocabulary: Vocabulary) -> list[Shape]:
    """One for each token of the event, which must have logprobs. Texts of tokens that are not special joined are the generated text."""
    assert event.logprobs is not None
    pieces = event.pieces or [event.text]
    shapes: list[Shape] = []
    for place, token_id in enumerate(event.token_ids):
        is_special = vocabulary.is_special(token_id)
        text = vocabulary.token_strings([token_id])[0] if is_special else pieces[place]
        logprob = finite(event.logprobs[place][token_id].logprob)
        shapes.append({"id": token_id, "text": text, "logprob": logprob, "special": is_special})
    return shapes


def most_likely(entries: LogprobsDict, count: int) -> list[int]:
    """Ids of the `count` most likely candidates and of those that tie with the last of them, ties in order of their ids."""
    ranked = sorted(entries, key=lambda token_id: (-entries[token_id].logprob, token_id))
    if count == 0 or len(ranked) <= count:
        return ranked[:count]
    least = entries[ranked[count - 1]].logprob
    return [token_id for token_id in ranked if entries[token_id].logprob >= least]


def top_token_shapes(event: TokenEvent, count: int, vocabulary: Vocabulary) -> list[list[Shape]]:
    """For each token of the event its alternatives, most likely first."""
    return [[_candidate(entries, token_id, vocabulary) for token_id in most_likely(entries, count)] for entries in event.logprobs or []]


def _candidate(entries: LogprobsDict, token_id: int, vocabulary: Vocabulary) -> Shape:
    entry = entries[token_id]
    return {"id": token_id, "text": entry.decoded_token or "", "logprob": finite(entry.logprob), "special": vocabulary.is_special(token_id)}


async def prefill_shapes(info: PromptInfo, vocabulary: Vocabulary) -> list[Shape]:
    """The prompt's tokens with their logprobs; nothing predicts the first one, whose logprob is null."""
    assert info.prompt_logprobs is not None
    texts = await vocabulary.spell(info.prompt_token_ids)
    return [
        {"id": token_id, "text": text, "logprob": None if entries is None else finite(entries[token_id].logprob)}
        for token_id, text, entries in zip(info.prompt_token_ids, texts, info.prompt_logprobs, strict=True)
    ]

"""Tokens to shown text: stream and whole agree, stop strings and `min_tokens` are heeded token by token."""

from __future__ import annotations

import pytest
from helpers_tokenizers import SAMPLES, byte_level_tokenizer, sentencepiece_tokenizer, window_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from trivium.text import OutputText
from trivium.types import SamplingParams

TOKENIZER = byte_level_tokenizer()


def run(ids: list[int], params: SamplingParams, *, tokenizer=TOKENIZER, ends: bool = False) -> tuple[list[str], str | None, int]:
    """Pieces, stop reason, tokens used."""
    output = OutputText(tokenizer, params)
    pieces: list[str] = []
    for position, token_id in enumerate(ids, 1):
        pieces.append(output.push(token_id, ends=ends and position == len(ids)))
        if output.stop_reason is not None:
            return pieces, output.stop_reason, position
    return [*pieces, output.finish()], output.stop_reason, len(ids)


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("tokenizer", [TOKENIZER, sentencepiece_tokenizer()])
def test_without_stop_strings_the_pieces_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(run(ids, SamplingParams(), tokenizer=tokenizer)[0]) == text


@given(st.sampled_from(SAMPLES), st.data())
def test_the_text_ends_where_any_stop_string_begins(text, data):
    """B1, B2, B3: wherever tokens begin, and in the middle of characters of several bytes as well."""
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 6))]
    pieces, reason, _ = run(TOKENIZER.encode(text, add_special_tokens=False), SamplingParams(stop=stop))
    assert reason == stop
    assert "".join(pieces) == text[: text.index(stop)]


def test_a_stop_string_ends_the_output_at_the_token_that_completes_it():
    ids = [TOKENIZER.token_to_id(char) for char in "abcdefg"]
    pieces, reason, used = run(ids, SamplingParams(stop=["cd", "zz"]))
    assert (pieces, reason, used) == (["a", "b", "", ""], "cd", 4)
    included = run(ids, SamplingParams(stop="cd", include_stop_str_in_output=True))
    assert ("".join(included[0]), included[2]) == ("abcd", 4)


def test_no_stop_string_is_looked_for_before_min_tokens():
    """B4: after `min_tokens` tokens, only in the text that follows them."""
    ids = [TOKENIZER.token_to_id(char) for char in "abababc"]
    assert run(ids, SamplingParams(stop="ab", min_tokens=3))[:2] == (["a", "b", "a", "b", "", ""], "ab")
    assert run(ids, SamplingParams(stop="ab", min_tokens=2))[:2] == (["a", "b", "", ""], "ab")
    assert run(ids, SamplingParams(stop="bc", min_tokens=7))[1] is None


def test_held_text_is_searched_no_more_but_shown_at_the_end():
    ids = [TOKENIZER.token_to_id(char) for char in "xyz"]
    assert run(ids, SamplingParams(stop="yz!")) == (["x", "", "", "yz"], None, 3)


def test_the_token_that_ended_the_choice_has_no_text_unless_asked_for():
    ids = [*TOKENIZER.encode("hi"), TOKENIZER.eos_token_id]
    shown = SamplingParams(skip_special_tokens=False)
    assert "".join(run(ids, shown, ends=True)[0]) == "hi"
    assert "".join(run(ids, shown)[0]) == "hi</s>"
    included = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=True)
    assert "".join(run(ids, included, ends=True)[0]) == "hi</s>"


def test_text_held_by_the_decoder_at_the_end_is_searched_too():
    tokenizer = window_tokenizer()
    letter, broken = tokenizer.token_to_id("w"), tokenizer.token_to_id("<0xE5>")
    assert "".join(run([letter, broken], SamplingParams(stop="w?"), tokenizer=tokenizer)[0]) == "w"


def test_the_prompt_decides_about_the_first_space():
    tokenizer = sentencepiece_tokenizer()
    world = tokenizer.token_to_id("▁world")
    assert OutputText(tokenizer, SamplingParams(), prompt_ids=[world]).push(world) == " world"
    assert OutputText(tokenizer, SamplingParams()).push(world) == "world"

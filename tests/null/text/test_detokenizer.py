"""Incremental decoding: whole characters only, nothing lost, the same text as decoding all at once (vLLM's bugs B5 and B7)."""

from __future__ import annotations

import pytest
import tokenizers
from helpers_tokenizers import SAMPLES, byte_level_tokenizer, sentencepiece_tokenizer, window_tokenizer, word_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from trivium.text import IncrementalDetokenizer, Tokenizer
from trivium.text.detokenizer import MAX_HELD_TOKENS

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()


def stream(tokenizer: Tokenizer, ids: list[int], **options: object) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)  # type: ignore[arg-type]
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer, window_tokenizer])
def test_pieces_join_to_the_text_and_hold_no_half_characters(make, text):
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text
    kept = text.count("\ufffd")
    assert sum(piece.count("\ufffd") for piece in pieces) == kept, "only what the text itself has"
    for piece in pieces:
        assert piece == "" or piece in text


def test_burmese_characters_come_out_whole_and_one_by_one():
    text = "မြန်မာ"
    ids = spelled(text)
    assert len(ids) == len(text.encode())
    pieces = stream(BYTE_LEVEL, ids)
    assert [piece for piece in pieces if piece] == list(text)


def spelled(text: str) -> list[int]:
    """Each byte of `text` as the byte-level token that stands for it alone."""
    by_byte = {BYTE_LEVEL.token_bytes(i): i for i in range(4, 260)}
    return [by_byte[bytes([byte])] for byte in text.encode()]


def test_a_character_cut_off_by_the_end_is_dropped():
    ids = BYTE_LEVEL.encode("ok 😀")
    assert "".join(stream(BYTE_LEVEL, ids[:-1])) == "ok "
    assert BYTE_LEVEL.decode(ids[:-1]).endswith("\ufffd")


def test_bytes_that_can_be_no_character_become_replacement_characters():
    lone = next(i for i in range(4, 260) if BYTE_LEVEL.token_bytes(i) == b"\x80")
    letter = BYTE_LEVEL.encode("x")
    assert stream(BYTE_LEVEL, [lone, *letter]) == ["\ufffd", "x", ""]


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=40), st.booleans())
def test_any_byte_level_ids_give_the_text_of_decoding_all_at_once(ids, skip):
    """Only the end may differ: decoding at once shows the bytes of a character cut off there, or that look like one."""
    text = "".join(stream(BYTE_LEVEL, ids, skip_special_tokens=skip))
    at_once = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
    assert at_once in (text, text + "\ufffd", text + "\ufffd\ufffd")


@given(st.lists(st.integers(0, SENTENCEPIECE.vocab_size - 1), max_size=40))
def test_any_sentencepiece_ids_give_their_bytes_as_text(ids):
    shown = [i for i in ids if i not in SENTENCEPIECE.special_ids]
    expected = b"".join(map(SENTENCEPIECE.token_bytes, shown)).decode(errors="replace").removeprefix(" ")
    text = "".join(stream(SENTENCEPIECE, ids))
    assert expected in (text, text + "\ufffd", text + "\ufffd\ufffd")


def test_only_the_start_of_a_whole_text_loses_its_space():
    hello, world = SENTENCEPIECE.token_to_id("▁hello"), SENTENCEPIECE.token_to_id("▁world")
    assert "".join(stream(SENTENCEPIECE, [hello, world])) == "hello world" == SENTENCEPIECE.decode([hello, world])
    assert "".join(stream(SENTENCEPIECE, [world], prompt_ids=[hello])) == " world"
    bos = SENTENCEPIECE.bos_token_id
    assert "".join(stream(SENTENCEPIECE, [world], prompt_ids=[bos])) == "world" == SENTENCEPIECE.decode([bos, world])
    assert "".join(stream(SENTENCEPIECE, [world], prompt_ids=[hello, *[bos] * 9])) == " world"
    space = SENTENCEPIECE.token_to_id("▁")
    assert stream(SENTENCEPIECE, [space, world]) == ["", " world", ""]
    no_prefix = sentencepiece_tokenizer(prefix=False)
    assert "".join(stream(no_prefix, [hello])) == " hello" == no_prefix.decode([hello])


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer, window_tokenizer])
def test_a_character_begun_in_the_prompt_is_finished_in_the_output(make):
    tokenizer = make()
    ids = tokenizer.encode("😀", add_special_tokens=False)
    text = "".join(stream(tokenizer, ids[2:], prompt_ids=ids[:2]))
    assert text == "😀"


def test_a_prompt_of_broken_bytes_is_not_repeated():
    tokenizer = window_tokenizer()
    broken, letter = tokenizer.token_to_id("<0xFF>"), tokenizer.token_to_id("w")
    assert "".join(stream(tokenizer, [letter], prompt_ids=[broken] * 9)) == "w"


def test_text_that_does_not_grow_by_appending_is_not_lost():
    """B5: ByteFallback turns a whole run of byte tokens into U+FFFD when one of them doesn't fit, text already shown included."""
    tokenizer = window_tokenizer()
    run = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "好".encode()]
    broken = tokenizer.token_to_id("<0xE5>")
    letter = tokenizer.token_to_id("w")
    assert tokenizer.decode([*run, broken, letter]) == "\ufffd" * 4 + "w"
    assert stream(tokenizer, [*run, broken, letter]) == ["", "", "好", "", "\ufffdw", ""]


def test_a_window_of_broken_bytes_does_not_grow_for_ever():
    tokenizer = window_tokenizer()
    broken = tokenizer.token_to_id("<0xFF>")
    pieces = stream(tokenizer, [broken] * 100)
    assert max(map(len, pieces)) <= MAX_HELD_TOKENS
    assert len("".join(pieces)) >= 100 - MAX_HELD_TOKENS


def test_tokens_without_text_are_forgotten():
    tokenizer = word_tokenizer()
    hello, cls = tokenizer.token_to_id("hello"), tokenizer.token_to_id("[CLS]")
    assert "".join(stream(tokenizer, [hello, *[cls] * 50, hello])).split() == ["hello", "hello"]


def test_words_of_wordpiece_are_spaced_by_their_neighbours():
    tokenizer = word_tokenizer()
    ids = [tokenizer.token_to_id(name) for name in ("hello", "world", ",", "run", "##ing", "!")]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "hello world, runing!"


def test_special_tokens_in_a_row_can_do_without_spaces():
    tokenizer = word_tokenizer()
    ids = [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "hello", "[SEP]")]
    spaced = {"skip_special_tokens": False, "spaces_between_special_tokens": True}
    joined = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert "".join(stream(tokenizer, ids, **spaced)) == tokenizer.decode(ids, **spaced) == "[CLS] [SEP] hello [SEP]"
    assert "".join(stream(tokenizer, ids, **joined)) == tokenizer.decode(ids, **joined) == "[CLS][SEP] hello [SEP]"
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "hello"


def test_byte_decoders_put_no_spaces_between_special_tokens():
    ids = [0, 1, *BYTE_LEVEL.encode("x")]
    for spaces in (True, False):
        assert BYTE_LEVEL.decode(ids, skip_special_tokens=False, spaces_between_special_tokens=spaces) == "<s></s>x"


def test_no_decoder_at_all_joins_with_spaces():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert "".join(stream(Tokenizer(backend), [0, 1, 0])) == "a b a"


def test_many_tokens_take_time_in_proportion():
    """An amortized constant per token: the work is counted, not timed."""
    tokenizer = window_tokenizer()
    longest = 0
    decode = tokenizer.decode

    def counted(ids: list[int], **options: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, **options)

    tokenizer.decode = counted  # type: ignore[method-assign]
    hello = tokenizer.token_to_id("▁hello")
    assert "".join(stream(tokenizer, [hello] * 300)) == " ".join(["hello"] * 300)
    assert longest <= 2 * MAX_HELD_TOKENS

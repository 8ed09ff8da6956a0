"""Vocabularies inside GGUF files, byte-level and SentencePiece, and the errors of broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers_gguf import write_gguf
from helpers_gguf_vocab import byte_level_metadata, sentencepiece_metadata
from helpers_tokenizers import SAMPLES

from trivium.errors import ModelLoadError
from trivium.sources.gguf_file import read_gguf
from trivium.text import Tokenizer
from trivium.text.pretokenizers import PRE_TOKENIZERS


def load(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf(write_gguf(folder / "vocab.gguf", metadata)))


def pieces(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[str | None]:
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, add_special_tokens=add_special_tokens)]


def test_smollm_splits_digits_one_by_one_and_gpt2_does_not(tmp_path):
    assert pieces(load(tmp_path, byte_level_metadata()), "hello world123") == ["hello", "Ġworld", "1", "2", "3"]
    assert pieces(load(tmp_path, byte_level_metadata(pre="gpt-2")), "hello world123") == ["hello", "Ġworld", "123"]


def test_control_tokens_are_special_and_user_defined_ones_only_whole(tmp_path):
    tokenizer = load(tmp_path, byte_level_metadata())
    ids = tokenizer.encode("hello<|user|>hello<|end|>")
    assert ids == [tokenizer.token_to_id("hello"), 1, tokenizer.token_to_id("hello"), 0]
    assert tokenizer.decode(ids) == "hello<|user|>hello"
    assert tokenizer.special_ids == {0}
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.bos_token_id) == ("<|end|>", 0, None)


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_keeps_the_text_and_splits_words(tmp_path, name):
    tokenizer = load(tmp_path, byte_level_metadata(pre=name, bos_token_id=0))
    for text in [*SAMPLES, "don't  CamelCase\r\n\r\n 1234567 x=[1,2]; (a|b) naïve ÉCOLE"]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert pieces(tokenizer, "hello world") == ["hello", "Ġworld"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("qwen2", "it'S 123", ["it", "'S", " ", "1", "2", "3"]),
        ("llama-bpe", "it's 12345", ["it", "'s", " ", "123", "45"]),
        ("gpt-2", "it's 12345\n\nx", ["it", "'s", " 12345", "\n", "\n", "x"]),
        ("smollm", "a 12\n\nx", ["a", " ", "1", "2", "\n", "\n", "x"]),
        ("default", "a=12 b", ["a", "=", "12", " b"]),
        ("deepseek-v3", "x=12345你好", ["x", "=", "123", "45", "你好"]),
        ("deepseek-coder", "ab12\n你", ["ab", "1", "2", "\n", "你"]),
        ("falcon", "a1234", ["a", "123", "4"]),
        ("tekken", "camelCase12", ["camel", "Case", "1", "2"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("bloom", "a. b, c", ["a", ".", " b", ",", " c"]),
        ("viking", "ab12", ["ab", "1", "2"]),
    ],
)
def test_words_as_the_models_own_expressions_cut_them(name, text, words):
    split = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in split] == words


def test_a_word_known_as_a_whole_needs_no_merges_where_llama3_rules_hold(tmp_path):
    changes = {"merges": ["h e"]}
    assert pieces(load(tmp_path, byte_level_metadata(pre="llama-bpe", bos_token_id=0, **changes)), "hello") == ["hello"]
    assert pieces(load(tmp_path, byte_level_metadata(pre="qwen2", **changes)), "hello") == ["he", "l", "l", "o"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pre": "qwen2"}, ["hello"]),
        ({"pre": "llama-bpe"}, ["<|end|>", "hello"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["hello"]),
        ({"pre": "qwen2", "add_bos_token": True}, ["<|end|>", "hello"]),
        ({"add_eos_token": True}, ["hello", "<|end|>"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<|end|>", "hello", "<|end|>"]),
    ],
)
def test_begin_and_end_are_added_as_the_file_says_or_its_kind_does(tmp_path, changes, expected):
    tokenizer = load(tmp_path, byte_level_metadata(bos_token_id=0, **changes))
    assert pieces(tokenizer, "hello", add_special_tokens=True) == expected
    assert pieces(tokenizer, "hello") == ["hello"]
    assert tokenizer.num_special_tokens_to_add() == len(expected) - 1


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path):
    tokenizer = load(tmp_path, sentencepiece_metadata())
    assert pieces(tokenizer, "hello world", add_special_tokens=True) == ["<s>", "▁hello", "▁world"]
    assert pieces(tokenizer, "llo") == ["▁", "ll", "o"], "ll has a better score than lo"
    assert pieces(tokenizer, "你é") == ["▁", "你", "<0xC3>", "<0xA9>"]
    assert pieces(tokenizer, "<mark>hello</s>") == ["<mark>", "▁hello", "</s>"]
    for text in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_without_a_space_before_the_text(tmp_path):
    tokenizer = load(tmp_path, sentencepiece_metadata(add_space_prefix=False, add_bos_token=False, unknown_token_id=None))
    assert pieces(tokenizer, "hello world", add_special_tokens=True) == ["hello", "▁world"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_phi3_markers_swallow_the_space_behind_them(tmp_path):
    metadata = sentencepiece_metadata()
    metadata["general.architecture"] = "phi3"
    assert pieces(load(tmp_path, metadata), "</s>\nhello") == ["</s>", "▁hello"]
    assert pieces(load(tmp_path, sentencepiece_metadata()), "</s>\nhello")[:3] == ["</s>", "▁", "<0x0A>"]


def test_empty_tokens_have_names_of_their_own(tmp_path):
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokenizer = load(tmp_path, byte_level_metadata(tokens=[*tokens, "", ""], token_type=None))
    assert tokenizer.token_to_id(f"[EMPTY_{len(tokens) + 1}]") == len(tokens) + 1
    assert tokenizer.special_ids == {0}, "the end token's role makes it special, whatever its type"


BROKEN: list[tuple[dict[str, Any], str]] = [
    (byte_level_metadata(pre="martian"), "unknown pre-tokenizer 'martian'.*Known:.*smollm"),
    (byte_level_metadata(model="rwkv"), "kind 'rwkv'.*Supported: gpt2, llama"),
    (byte_level_metadata(model=None), "no metadata 'tokenizer.ggml.model'"),
    (byte_level_metadata(merges=None), "no metadata 'tokenizer.ggml.merges'"),
    (byte_level_metadata(merges=["hello"]), "'hello' in tokenizer.ggml.merges is no pair"),
    (byte_level_metadata(merges=("u32", [1])), "is no pair"),
    (byte_level_metadata(merges=["h Q不"]), "merges and tokens don't fit"),
    (byte_level_metadata(tokens=["a", "b", "a"]), "token 'a' has the ids 0 and 2"),
    (byte_level_metadata(tokens=("u32", [1, 2])), "no list of strings"),
    (byte_level_metadata(token_type=("i32", [1])), "tokens but 1 entries in tokenizer.ggml.token_type"),
    (byte_level_metadata(eos_token_id=9999), "eos_token_id is 9999, but there are"),
    (sentencepiece_metadata(scores=None), "no metadata 'tokenizer.ggml.scores'"),
    (sentencepiece_metadata(scores=["x"] * 400), "scores is no list of numbers"),
    (sentencepiece_metadata(scores=[0.0]), "tokens but 1 entries in tokenizer.ggml.scores"),
]


@pytest.mark.parametrize(("metadata", "message"), BROKEN)
def test_a_broken_vocabulary_is_an_error_that_names_the_file_and_the_key(tmp_path, metadata, message):
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(tmp_path, metadata)
    assert "vocab.gguf" in str(caught.value)

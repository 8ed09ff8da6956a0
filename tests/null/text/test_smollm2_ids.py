"""The packaged model's token ids against llama.cpp's rules, on thousands of strings."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from helpers_llamacpp import LlamaCppTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.sources.gguf_file import GGUFFile, read_gguf
from trivium.sources.packaged import packaged_model
from trivium.text import IncrementalDetokenizer, Tokenizer

pytestmark = pytest.mark.skipif(packaged_model() is None, reason="the packaged model is not installed")

POOLS = [
    "abcdefghijklmnop ABC 's't 'll 've",
    "0123456789 .,-",
    "你好世界今天天气很好，。！",
    "😀👩\u200d👧🇩🇪 ",
    "မြန်မာဘာသာစကား",
    "\n\t\r  \u3000\xa0",
    "!?.,;:-_=+*&^%$#@()[]{}|\\/'\"`~",
    "éüñßøæ e\u0301",
    "Привет мир",
    "مرحبا بالعالم",
    "①②½Ⅷ٣४",
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start"]


@cache
def gguf() -> GGUFFile:
    path = packaged_model()
    assert path is not None
    return read_gguf(path)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(gguf())


@cache
def reference() -> LlamaCppTokenizer:
    tokens, types = gguf().require_array("tokenizer.ggml.tokens"), gguf().require_array("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    return LlamaCppTokenizer(tokens, gguf().require_array("tokenizer.ggml.merges"), special)


def random_text(rng: random.Random) -> str:
    parts = [
        rng.choice(SPECIAL) if rng.random() < 0.1 else "".join(rng.choices(rng.choice(POOLS), k=rng.randint(1, 9))) for _ in range(rng.randint(1, 7))
    ]
    return "".join(parts)


def real_texts() -> list[str]:
    """Paragraphs of prose and code that are at hand: this repository's."""
    here = Path(__file__).parent
    return [chunk for path in sorted(here.glob("*.py")) for chunk in path.read_text().split("\n\n")]


def test_ids_are_those_of_llama_cpp_on_thousands_of_strings():
    rng = random.Random(2024)
    texts = [random_text(rng) for _ in range(2500)] + real_texts()
    different = [text for text in texts if tokenizer().encode(text) != reference().encode(text)]
    assert different == []
    assert len(texts) > 2600


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("".join(POOLS)), max_size=30).map("".join))
def test_ids_go_back_to_the_text_at_once_and_token_by_token(text):
    ids = tokenizer().encode(text)
    assert ids == reference().encode(text)
    assert tokenizer().decode(ids, skip_special_tokens=False) == text
    detokenizer = IncrementalDetokenizer(tokenizer(), skip_special_tokens=False)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text


def test_facts_about_the_vocabulary():
    assert tokenizer().vocab_size == 49152
    assert (tokenizer().bos_token_id, tokenizer().eos_token_id, tokenizer().eos_token) == (1, 2, "<|im_end|>")
    assert tokenizer().num_special_tokens_to_add() == 0
    assert [tokenizer().token_to_str(i) for i in tokenizer().encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]

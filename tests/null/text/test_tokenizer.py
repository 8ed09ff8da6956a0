"""`Tokenizer`: folders, roles of special tokens, limits, text of single tokens."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from helpers_tokenizers import (
    SAMPLES,
    byte_level_backend,
    byte_level_tokenizer,
    sentencepiece_backend,
    sentencepiece_tokenizer,
    word_tokenizer,
    write_folder,
)

from trivium.errors import InvalidRequest, ModelLoadError, PromptTooLong
from trivium.text import Tokenizer
from trivium.text import tokenizer as tokenizer_module


@pytest.mark.parametrize("text", SAMPLES)
def test_text_goes_to_ids_and_back(text):
    for tokenizer in (byte_level_tokenizer(), sentencepiece_tokenizer()):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", SAMPLES)
def test_the_json_form_is_the_same_tokenizer(text, tmp_path):
    tokenizer = byte_level_tokenizer()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    assert Tokenizer.from_folder(tmp_path).encode(text) == tokenizer.encode(text)


def test_special_tokens_are_added_as_the_post_processor_says():
    tokenizer = sentencepiece_tokenizer()
    with_bos = tokenizer.encode("hello")
    assert with_bos == [tokenizer.bos_token_id, *tokenizer.encode("hello", add_special_tokens=False)]
    assert tokenizer.num_special_tokens_to_add() == 1
    assert byte_level_tokenizer().num_special_tokens_to_add() == 0


def test_special_tokens_are_shown_only_when_asked_for():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("<s>hi</s>")
    assert (ids[0], ids[-1]) == (0, 1)
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>hi</s>"


def test_ids_outside_the_vocabulary_stand_for_nothing():
    tokenizer = byte_level_tokenizer()
    beyond = tokenizer.vocab_size + 7
    assert tokenizer.decode([*tokenizer.encode("hi"), beyond]) == "hi"
    for token_id in (beyond, -1):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.token_to_str(token_id) == ""
        assert tokenizer.id_to_token(token_id) is None


def test_a_hole_in_the_vocabulary_stands_for_nothing():
    backend = byte_level_backend()
    state = json.loads(backend.to_str())
    state["model"]["vocab"] = {token: i + 5 if i > 300 else i for token, i in state["model"]["vocab"].items()}
    tokenizer = Tokenizer(type(backend).from_str(json.dumps(state)))
    assert tokenizer.token_bytes(303) == b""
    assert tokenizer.token_to_str(303) == ""


def test_text_of_single_tokens():
    tokenizer = byte_level_tokenizer()
    space_the = tokenizer.encode(" the")[0]
    assert tokenizer.token_to_str(space_the) == " the"[: len(tokenizer.token_to_str(space_the))]
    emoji = tokenizer.encode("😀")
    assert b"".join(map(tokenizer.token_bytes, emoji)) == "😀".encode()
    assert tokenizer.token_to_str(emoji[0]) == "\ufffd"
    assert tokenizer.token_to_str(0) == "<s>"
    assert tokenizer.token_bytes(0) == b"<s>"
    assert tokenizer.token_bytes(0) is tokenizer.token_bytes(0), "made once"
    words = word_tokenizer()
    assert words.token_to_str(words.token_to_id("hello")) == "hello"
    assert words.token_bytes(words.token_to_id("[CLS]")) == b"[CLS]"
    pieces = sentencepiece_tokenizer()
    assert pieces.token_to_str(pieces.token_to_id("▁world")) == " world"
    assert pieces.token_bytes(pieces.token_to_id("<0xE4>")) == b"\xe4"


def test_an_added_token_outside_the_byte_alphabet_stands_for_itself():
    backend = byte_level_backend()
    backend.add_tokens(["你好", "a b"])
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode("x你好a b")
    assert [tokenizer.token_bytes(i).decode() for i in ids] == ["x", "你好", "a b"]
    assert tokenizer.decode(ids) == "x你好a b"


def test_too_long_a_text_is_refused_by_its_length_before_any_work():
    tokenizer = byte_level_tokenizer()
    assert len(tokenizer.encode("abc", max_tokens=3)) <= 3
    with pytest.raises(PromptTooLong, match="1000000 characters, which can't fit into 10 tokens"):
        tokenizer.encode("x" * 1_000_000, max_tokens=10)
    with pytest.raises(PromptTooLong, match="5 tokens; at most 4"):
        tokenizer.encode("12345", max_tokens=4)


def test_a_monstrous_text_is_refused_whatever_the_context(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_TEXT_CHARS", 10)
    with pytest.raises(PromptTooLong, match="at most 10"):
        byte_level_tokenizer().encode("x" * 11)


def test_a_lone_surrogate_is_the_callers_mistake():
    with pytest.raises(InvalidRequest, match="surrogate"):
        byte_level_tokenizer().encode("a\ud800b")


def test_truncation_and_padding_of_the_file_are_switched_off():
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    assert len(Tokenizer(backend).encode("1234567")) == 7


class PanicException(BaseException):
    """Named as what a panic in Rust raises."""


@pytest.mark.parametrize(
    ("error", "raised"), [(Exception("x"), InvalidRequest), (PanicException("x"), InvalidRequest), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_panic_of_the_library_fails_one_request(error, raised):
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise error

    tokenizer = byte_level_tokenizer()
    tokenizer._backend = Broken()  # type: ignore[assignment]
    with pytest.raises(raised):
        tokenizer.encode("x")
    with pytest.raises(raised):
        tokenizer.decode([1])


def test_ids_that_are_no_ids_are_the_callers_mistake():
    for bad in (-1, 2**40):
        with pytest.raises(InvalidRequest, match="fails on these token ids"):
            byte_level_tokenizer().decode([bad])


def test_several_threads_may_encode_at_once():
    tokenizer = byte_level_tokenizer()
    expected = {text: tokenizer.encode(text) for text in SAMPLES}
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(text for text in SAMPLES if tokenizer.encode(text) != expected[text])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_roles_come_from_the_folders_files(tmp_path):
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "<|im_end|>", "pad_token": None, "unk_token": 7}
    folder = write_folder(tmp_path / "m", byte_level_backend(), config=config, special={"eos_token": "</s>", "pad_token": {"content": "</s>"}})
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == ("<s>", "<|im_end|>", "</s>", None)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 3, 1, None)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "</s>"}


def test_a_folder_with_tokenizer_json_alone_has_no_roles(tmp_path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path / "m", byte_level_backend()))
    assert tokenizer.special_tokens == {}
    assert tokenizer.encode("hi") == byte_level_tokenizer().encode("hi")


def test_a_role_whose_token_is_not_in_the_vocabulary_is_no_role(tmp_path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path / "m", byte_level_backend(), config={"eos_token": "<nope>"}))
    assert tokenizer.eos_token is None


@pytest.mark.parametrize(
    "extra",
    [
        {"additional_special_tokens": ["the", {"content": "</s>"}, 5, "<absent>"]},
        {"extra_special_tokens": {"image": "the"}},
        {"eos_token": "the"},
    ],
)
def test_tokens_named_as_special_are_hidden(tmp_path, extra):
    backend = byte_level_backend()
    the = "the" if backend.token_to_id("the") is not None else None
    if the is None:
        backend.add_tokens(["the"])
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path / "m", backend, config=extra))
    assert tokenizer.decode(tokenizer.encode("a the b")) == "a  b"


def test_tokens_listed_beside_the_vocabulary_are_added_in_order(tmp_path):
    backend = byte_level_backend()
    size = backend.get_vocab_size()
    listed: dict[str, Any] = {
        str(size + 1): {"content": "<b>", "special": False},
        str(size): {"content": "<a>", "special": True, "rstrip": True},
        "0": {"content": "<s>"},
        "x": {"content": "<bad>"},
        "9999": "<odd>",
        "10000": {"content": ""},
    }
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path / "m", backend, config={"added_tokens_decoder": listed}))
    assert (tokenizer.token_to_id("<a>"), tokenizer.token_to_id("<b>"), tokenizer.token_to_id("<bad>")) == (size, size + 1, None)
    assert tokenizer.decode(tokenizer.encode("<a>  x<b>")) == "x<b>"
    assert tokenizer.vocab_size == size + 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no tokenizer.json"),
        ({"tokenizer.json": "{"}, "tokenizer.json can't be used"),
        ({"tokenizer.json": "[]"}, "tokenizer.json can't be used"),
        ({"tokenizer.json": '{"model": {"type": "BPE"}}'}, "tokenizer.json can't be used"),
        ({"tokenizer.json": None, "tokenizer_config.json": "[1]"}, "tokenizer_config.json must hold a JSON object"),
        ({"tokenizer.json": None, "tokenizer_config.json": '{"a": NaN}'}, "tokenizer_config.json is not valid JSON"),
    ],
)
def test_a_folder_that_can_not_be_used_is_an_error_that_names_the_file(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(byte_level_backend().to_str() if content is None else content)
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_a_huge_tokenizer_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_JSON_BYTES", 10)
    with pytest.raises(ModelLoadError, match="larger than 10 bytes"):
        Tokenizer.from_folder(write_folder(tmp_path / "m", byte_level_backend()))


def test_decoders_of_nested_and_unknown_kinds(tmp_path):
    from tokenizers import decoders

    backend = sentencepiece_backend()
    inner = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), inner])
    nested = Tokenizer(backend)
    assert nested.byte_decoder is not None
    assert nested.byte_decoder.strip_left == 0
    for unknown in (
        decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("x", 1, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
        decoders.Metaspace(),
    ):
        backend.decoder = unknown
        assert Tokenizer(backend).byte_decoder is None

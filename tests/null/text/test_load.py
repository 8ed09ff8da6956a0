"""Which files tokenizer and chat template come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_gguf import write_gguf
from helpers_gguf_vocab import byte_level_metadata
from helpers_tokenizers import byte_level_backend, write_folder

from trivium.errors import ConfigError, ModelLoadError
from trivium.sources import ModelFiles, hub
from trivium.sources.packaged import packaged_model
from trivium.text import load, load_chat_template, load_tokenizer

HELLO = [{"role": "user", "content": "Hi"}]


def files(path: Path) -> ModelFiles:
    return ModelFiles(name="m", kind="gguf" if path.is_file() else "folder", path=path, config={})


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "m", byte_level_backend(), config={"bos_token": "<s>", "chat_template": "config {{ bos_token }}"})


def prompt(path: Path, **options: str) -> str | None:
    template = load_chat_template(files(path), **options)
    if template is None:
        return None
    text = template.render(HELLO)
    template.close()
    return text


def test_a_folders_own_tokenizer_or_another_one(folder, tmp_path):
    other = write_folder(tmp_path / "other", byte_level_backend(300))
    vocab = write_gguf(tmp_path / "v.gguf", byte_level_metadata())
    assert load_tokenizer(files(folder)).vocab_size == 350
    assert load_tokenizer(files(folder), str(other)).vocab_size == 300
    assert load_tokenizer(files(folder), str(vocab)).vocab_size == len(byte_level_metadata()["tokenizer.ggml.tokens"])
    assert load_tokenizer(files(vocab)).eos_token == "<|end|>"


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "~nobody/x"])
def test_a_tokenizer_that_is_not_there(folder, name):
    with pytest.raises(ConfigError, match="no folder, .gguf file, hub name or URL"):
        load_tokenizer(files(folder), name)


def test_a_tokenizer_that_is_another_kind_of_file(folder):
    with pytest.raises(ConfigError, match="no folder"):
        load_tokenizer(files(folder), str(folder / "tokenizer.json"))


def test_a_tokenizer_from_the_hub(folder, monkeypatch):
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(hub, "download_tokenizer", lambda name, revision: asked.append((name, revision)) or folder)
    assert load_tokenizer(files(Path("elsewhere")), "owner/name").bos_token == "<s>"
    assert asked == [("owner/name", None)]


def test_templates_are_taken_in_transformers_order(folder):
    assert prompt(folder) == "config <s>"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert prompt(folder) == "json"
    (folder / "chat_template.jinja").write_text("jinja {{ bos_token }} é")
    assert prompt(folder) == "jinja <s> é"


def test_a_list_of_templates_has_a_default(folder):
    named = [{"name": "tools", "template": "tools"}, {"name": "default", "template": "plain"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert prompt(folder) == "plain"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"default": "object"}}))
    assert prompt(folder) == "object"


@pytest.mark.parametrize("value", [[], [{"name": "tools", "template": "x"}], {"a": "b"}, 7, [1, "x"]])
def test_templates_without_a_default_are_an_error(folder, value):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(ModelLoadError, match="tokenizer_config.json: chat_template is neither"):
        prompt(folder)


def test_a_model_without_a_template_has_none_until_one_is_given(tmp_path):
    folder = write_folder(tmp_path / "m", byte_level_backend())
    assert prompt(folder) is None
    assert prompt(folder, override="{{ messages[0].content }}!") == "Hi!"


def test_an_override_is_a_template_or_a_file(folder, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("from file")
    assert prompt(folder, override=str(file)) == "from file"
    assert prompt(folder, override="literal {{ bos_token }}") == "literal <s>"
    with pytest.raises(ConfigError, match="neither a file nor a Jinja template"):
        prompt(folder, override="no-such-file.jinja")
    with pytest.raises(ConfigError, match="given chat template is not a valid"):
        prompt(folder, override="{% if %}")


def test_a_template_inside_gguf(tmp_path):
    metadata = byte_level_metadata() | {"tokenizer.chat_template": "{{ eos_token }}{{ messages[0].content }}"}
    path = write_gguf(tmp_path / "n.gguf", metadata)
    assert prompt(path) == "<|end|>Hi"
    assert prompt(path, tokenizer=str(path)) == "<|end|>Hi"


def test_template_files_are_guarded(folder, monkeypatch):
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelLoadError, match="not valid UTF-8"):
        prompt(folder)
    monkeypatch.setattr(load, "MAX_TEMPLATE_BYTES", 1)
    with pytest.raises(ModelLoadError, match="larger than 1 bytes"):
        prompt(folder)


@pytest.mark.skipif(packaged_model() is None, reason="the packaged model is not installed")
def test_the_packaged_models_template():
    path = packaged_model()
    assert path is not None
    text = prompt(path)
    assert text is not None
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

"""Tokenizer and chat template of a model, from its own files, from another tokenizer's, or as the operator says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from trivium.errors import ConfigError, ModelLoadError
from trivium.sources.files import ModelFiles
from trivium.sources.gguf_file import read_gguf
from trivium.sources.paths import child_path, read_json_child
from trivium.sources.resolve import resolve_tokenizer
from trivium.text.chat_template import MAX_SOURCE_CHARS, ChatTemplate
from trivium.text.gguf_vocab import token_named
from trivium.text.tokenizer import Tokenizer, roles_in_folder

MAX_TEMPLATE_BYTES: Final = 4 * MAX_SOURCE_CHARS


def load_tokenizer(files: ModelFiles, tokenizer: str | None = None, *, hub: str = "huggingface") -> Tokenizer:
    """The model's tokenizer, or the one in the folder, .gguf file, hub repository or URL `tokenizer`. Raises `ModelLoadError` or `ConfigError`."""
    path = _tokenizer_path(files, tokenizer, hub)
    return Tokenizer.from_gguf(read_gguf(path)) if path.is_file() else Tokenizer.from_folder(path)


def load_chat_template(
    files: ModelFiles, tokenizer: str | None = None, *, override: str | None = None, hub: str = "huggingface"
) -> ChatTemplate | None:
    """The template beside the tokenizer, or `override`: a file's name or a template itself. None if there is none.

    Raises `ModelLoadError` for a template of the model, `ConfigError` for an override, that can't be used.
    """
    path = _tokenizer_path(files, tokenizer, hub)
    source, special_tokens = _from_gguf(path) if path.is_file() else _from_folder(path)
    if override is not None:
        source = _override_source(override)
        return ChatTemplate(source, special_tokens=special_tokens, origin="The given chat template", error=ConfigError)
    if source is None:
        return None
    return ChatTemplate(source, special_tokens=special_tokens, origin=f"The chat template in {path}")


def _tokenizer_path(files: ModelFiles, tokenizer: str | None, hub: str) -> Path:
    return files.path if tokenizer is None else resolve_tokenizer(tokenizer, hub=hub)


def _from_gguf(path: Path) -> tuple[str | None, dict[str, str]]:
    gguf = read_gguf(path)
    named = {role: token_named(gguf, key) for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}
    return gguf.text("tokenizer.chat_template"), {f"{role}_token": token for role, token in named.items() if token is not None}


def _from_folder(folder: Path) -> tuple[str | None, dict[str, str]]:
    """In transformers' order: a file of its own before the key in tokenizer_config.json."""
    file = child_path(folder, "chat_template.jinja")
    special_tokens = roles_in_folder(folder)
    if file is not None:
        return _read_text(file), special_tokens
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = (read_json_child(folder, name) or {}).get("chat_template")
        if value is not None:
            return _default_of(value, folder / name), special_tokens
    return None, special_tokens


def _default_of(value: Any, where: Path) -> str:
    """A template, or a list or object of named ones, of which the one called "default" is taken."""
    named: Any = value
    if isinstance(value, list):
        entries = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", value) if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
    if isinstance(named, dict):
        named = cast("dict[Any, Any]", named).get("default")
    if not isinstance(named, str):
        raise ModelLoadError(f"{where}: chat_template is neither a template nor a list of named ones with a default.")
    return named


def _override_source(override: str) -> str:
    if any(mark in override for mark in ("{{", "{%", "\n")):
        return override
    path = Path(override).expanduser()
    if not path.is_file():
        raise ConfigError(f"chat_template {override!r} is neither a file nor a Jinja template.", param="chat_template")
    return _read_text(path)


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ModelLoadError(f"{path} is larger than {MAX_TEMPLATE_BYTES} bytes.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelLoadError(f"{path} is not valid UTF-8.") from None

"""Which files of a model are fetched: those that are read, never anything that could hold code."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Final, cast

from trivium.errors import ModelLoadError

TOKENIZER_PATTERNS: Final = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"]
CONFIG_PATTERNS: Final = ["config.json", "generation_config.json", "quantize_config.json", "quant_config.json"]
INDEX_FILE: Final = "model.safetensors.index.json"
WEIGHT_PATTERNS: Final = ["*.safetensors", INDEX_FILE]
GGUF_PATTERN: Final = "*.gguf"
IGNORED_PATTERNS: Final = ["*/*", "consolidated*", "adapter_*"]


def model_patterns(*, with_weights: bool) -> list[str]:
    """Names of the files of a model folder, its weights among them if `with_weights`."""
    return CONFIG_PATTERNS + TOKENIZER_PATTERNS + (WEIGHT_PATTERNS if with_weights else [])


def is_wanted(name: str, patterns: list[str]) -> bool:
    """Whether the file `name` of a model folder is read."""
    return any(fnmatchcase(name, pattern) for pattern in patterns) and not any(fnmatchcase(name, pattern) for pattern in IGNORED_PATTERNS)


_SPLIT_GGUF: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def gguf_parts(name: str) -> list[str]:
    """Names of all files of a model split by llama.cpp's gguf-split, from that of any (name-00001-of-00003.gguf); of another, just it."""
    match = _SPLIT_GGUF.fullmatch(name)
    if match is None:
        return [name]
    return [f"{match['stem']}-{number:05d}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]


def is_later_gguf_part(name: str) -> bool:
    match = _SPLIT_GGUF.fullmatch(name)
    return match is not None and int(match["number"]) != 1


def whole_gguf_name(name: str) -> str:
    """The name without its part: what the parts of one model share."""
    return _SPLIT_GGUF.sub(r"\g<stem>.gguf", name)


def weight_map(path: PurePath, index: dict[str, Any]) -> dict[str, str]:
    """Tensor name → file name, from the index of a sharded checkpoint at `path`. Raises `ModelLoadError` for an index without one."""
    entries = index.get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in cast("dict[str, Any]", entries).values()):
        raise ModelLoadError(f"{path} has no weight_map from tensor names to file names.")
    return cast("dict[str, str]", entries)

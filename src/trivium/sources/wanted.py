"""Which files of a model are fetched: those that are read, never anything that could hold code."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

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

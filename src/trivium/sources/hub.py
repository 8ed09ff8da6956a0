"""Download from a Hugging Face hub or mirror: only the files that are read, never anything that could hold code."""

from __future__ import annotations

import re
from pathlib import Path

from trivium.errors import ConfigError, ModelLoadError

TOKENIZER_PATTERNS = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"]
CONFIG_PATTERNS = ["config.json", "generation_config.json"]
WEIGHT_PATTERNS = ["*.safetensors", "model.safetensors.index.json"]
IGNORED_PATTERNS = ["*/*", "consolidated*", "adapter_*"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)


def is_hub_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and ".." not in name and "--" not in name


def download_model(name: str, revision: str | None, *, with_weights: bool) -> Path:
    """The folder of the hub model `name` at `revision`. Raises `ModelLoadError` if it can't be had."""
    patterns = CONFIG_PATTERNS + TOKENIZER_PATTERNS + (WEIGHT_PATTERNS if with_weights else [])
    return _download(name, revision, patterns)


def download_tokenizer(name: str, revision: str | None) -> Path:
    return _download(name, revision, TOKENIZER_PATTERNS)


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    if not is_hub_name(name):
        raise ConfigError(f"{name!r} is neither a file or folder here nor a hub name like owner/model.", param="model")
    # The import takes 0.2 s and most starts need no hub.
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    where = f"model {name!r}" if revision is None else f"model {name!r} at revision {revision!r}"
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED_PATTERNS)
    except LocalEntryNotFoundError:
        reason = "is not in the local cache, and the hub can't be reached or offline mode is on"
        raise ModelLoadError(f"{where} {reason}. Give a folder, or fetch it where there is a network.") from None
    except HfHubHTTPError as error:
        raise ModelLoadError(f"The hub has no {where} for us: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Fetching {where} failed: {_reason(error)}") from None
    return Path(str(folder))


def _reason(error: Exception) -> str:
    """First line of the library's message: the rest is advice for its own users."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

"""Download from a Hugging Face hub or mirror: only the files that are read, never anything that could hold code."""

from __future__ import annotations

import re
from pathlib import Path

from trivium.errors import ConfigError, ModelLoadError

TOKENIZER_PATTERNS = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"]
CONFIG_PATTERNS = ["config.json", "generation_config.json"]
WEIGHT_PATTERNS = ["*.safetensors", "model.safetensors.index.json"]
IGNORED_PATTERNS = ["*/*", "consolidated*", "adapter_*"]

_QUANTIZATION = re.compile(r"[A-Za-z0-9_]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)


def is_hub_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and ".." not in name and "--" not in name


def split_gguf_name(name: str) -> tuple[str, str] | None:
    """`owner/model:Q4_K_M` → its two parts; None for a name of another form."""
    model, colon, quantization = name.rpartition(":")
    return (model, quantization) if colon and is_hub_name(model) and _QUANTIZATION.fullmatch(quantization) else None


def download_model(name: str, revision: str | None, *, with_weights: bool) -> Path:
    """The folder of the hub model `name` at `revision`. Raises `ModelLoadError` if it can't be had."""
    patterns = CONFIG_PATTERNS + TOKENIZER_PATTERNS + (WEIGHT_PATTERNS if with_weights else [])
    return _download(name, revision, patterns)


def download_gguf(name: str, revision: str | None, quantization: str) -> Path:
    """One .gguf file of a repository that holds several quantizations, or its first part. `quantization` ends the file's name: Q4_K_M."""
    folder = _download(name, revision, [f"*{quantization}.gguf", f"*{quantization}-?????-of-?????.gguf"])
    found = sorted(path for path in folder.glob("*.gguf") if re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).endswith(quantization))
    if not found:
        raise ModelLoadError(f"Hub model {name!r} has no .gguf file whose name ends in {quantization}.")
    return found[0]


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
        raise ModelLoadError(f"Hub {where} {reason}. Give a folder, or fetch it where there is a network.") from None
    except HfHubHTTPError as error:
        raise ModelLoadError(f"The hub has no {where} for us: {_reason(error)}") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Fetching {where} failed: {_reason(error)}") from None
    return Path(str(folder))


def _reason(error: Exception) -> str:
    """First line of the library's message: the rest is advice for its own users."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

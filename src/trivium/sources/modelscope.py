"""Download from ModelScope through its own client library, which checks SHA-256 and resumes (`trivium[modelscope]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.errors import ConfigError, ModelLoadError
from trivium.sources.hub import first_gguf, gguf_patterns, is_hub_name
from trivium.sources.wanted import IGNORED_PATTERNS, TOKENIZER_PATTERNS, model_patterns

INSTALL_COMMAND = "pip install 'trivium[modelscope]'"


def download_model(name: str, revision: str | None, *, with_weights: bool) -> Path:
    """The folder of the ModelScope model `name` at `revision` (default: its master branch). Raises `ModelLoadError` if it can't be had."""
    return _download(name, revision, model_patterns(with_weights=with_weights))


def download_gguf(name: str, revision: str | None, quantization: str) -> Path:
    """One .gguf file of a repository that holds several quantizations, or its first part."""
    return first_gguf(_download(name, revision, gguf_patterns(quantization)), name, quantization)


def download_tokenizer(name: str, revision: str | None) -> Path:
    return _download(name, revision, TOKENIZER_PATTERNS)


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    if "/" not in name or not is_hub_name(name):
        raise ConfigError(f"{name!r} is neither a file or folder here nor a ModelScope name like owner/model.", param="model")
    library = _library()
    where = f"model {name!r}" if revision is None else f"model {name!r} at revision {revision!r}"
    try:
        api: Any = library.HubApi()
        return Path(str(api.download_repo(name, "model", revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED_PATTERNS)))
    except library.HubError as error:
        raise ModelLoadError(f"ModelScope has no {where} for us: {error}") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelLoadError(f"Fetching {where} from ModelScope failed: {error}") from None


def _library() -> Any:
    try:
        import modelscope_hub  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise ConfigError(f"--hub modelscope needs ModelScope's client: {INSTALL_COMMAND}", param="hub") from None
    return modelscope_hub

"""Why something couldn't be loaded, as clients are told: in Triton's form, and without a word about where the server keeps its files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trivium.errors import ConfigError, InvalidRequest, TriviumError
from trivium.repository.config_text import BadModelConfig

_ABSOLUTE: Final = re.compile(r"(?<![\w.:/~-])(/[^\s/'\"`,:;()\[\]]+)((?:/[^\s/'\"`,:;()\[\]]+)+)")
"""An absolute path of two parts at least: the first, then the rest. Not the path of a URL."""


def reason_of(error: BaseException) -> str:
    """With Triton's name of the kind of error before it."""
    if isinstance(error, asyncio.CancelledError):
        return "the load was cancelled by an unload"
    text = error.message if isinstance(error, TriviumError) else f"{type(error).__name__}: {error}"
    kind = "Invalid argument: " if isinstance(error, BadModelConfig | InvalidRequest | ConfigError) else "Internal: "
    return text if text.startswith(("Internal: ", "Invalid argument: ")) else kind + text


def without_paths(text: str, repositories: Sequence[Path]) -> str:
    """Files of a repository relative to it, other files of this machine by their last name."""
    for repository in repositories:
        for root in dict.fromkeys((repository.resolve(), repository.absolute(), repository)):
            text = re.sub(rf"(?<![\w./-]){re.escape(str(root))}/", "", text)
            if root.is_absolute() and root.name:
                text = re.sub(rf"(?<![\w./-]){re.escape(str(root))}(?![\w-]|\.\w)", "the repository", text)
    return _ABSOLUTE.sub(_shorten, text)


def _shorten(match: re.Match[str]) -> str:
    # Names of a graph's nodes look the same (/encoder/MatMul), but nothing is there on the disk.
    return f".../{match[2].rpartition('/')[2]}" if Path(match[1]).is_dir() else match[0]

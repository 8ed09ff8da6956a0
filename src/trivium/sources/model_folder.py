"""Where in a folder a language model is."""

from __future__ import annotations

import json
from pathlib import Path


def find_model(folder: Path) -> Path | None:
    """`folder` itself if it is a model, else its one folder that is, else its one `.gguf` file; None where there is none, or several."""
    if _is_model(folder):
        return folder
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in inside if path.is_dir() and _is_model(path)]
    files = [path for path in inside if path.suffix == ".gguf" and path.is_file()]
    candidates = folders or files
    return candidates[0] if len(candidates) == 1 else None


def _is_model(folder: Path) -> bool:
    try:
        return "architectures" in json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False

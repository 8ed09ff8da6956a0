"""The one way from a name in a model folder to a path, and guarded reading of the JSON files found there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn, cast

from trivium.errors import ModelLoadError

MAX_JSON_BYTES = 64 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def child_path(folder: Path, name: str) -> Path | None:
    """Path of the regular file `name` in `folder`, or None if there is none.

    `name` must be one plain component. A link may lead only to a file below `folder`, or, in a snapshot folder of the hub's
    cache, to that cache's blobs. Raises `ModelLoadError` for anything else.
    """
    if not _FILE_NAME.fullmatch(name) or ".." in name:
        raise ModelLoadError(f"{name!r} is not the name of a file in {folder}.")
    path = folder / name
    target = path.resolve()
    if not any(target.is_relative_to(allowed) for allowed in _allowed_roots(folder.resolve())):
        raise ModelLoadError(f"{path} is a link to a place outside the model folder.")
    return path if target.is_file() else None


def _allowed_roots(root: Path) -> list[Path]:
    """A hub cache keeps contents in `blobs/` and links to them from `snapshots/<commit>/`."""
    return [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]


def read_json_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in `path`. Raises `ModelLoadError`, naming the file, for anything that is not one."""
    size = path.stat().st_size
    if size > max_bytes:
        raise ModelLoadError(f"{path} is {size} bytes long; such a file may have at most {max_bytes}.")
    try:
        value = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return cast(dict[str, Any], value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read_json_child(folder: Path, name: str, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """The JSON object in the file `name` of `folder`, or None if there is no such file."""
    path = child_path(folder, name)
    return None if path is None else read_json_object(path, max_bytes=max_bytes)

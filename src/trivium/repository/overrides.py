"""Models that arrive in a load request: `file:<version>/<name>` parameters, kept in a folder of their own as long as they are served."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from trivium.errors import InvalidRequest

PREFIX: Final = "file:"


def check_files(files: Mapping[str, bytes], config_json: str | None) -> None:
    """Raises `InvalidRequest` for a name that would leave the model's folder, or files without a configuration."""
    if files and config_json is None:
        raise InvalidRequest("override model configuration must be provided along with override model file", param="parameters")
    for name in files:
        path = PurePosixPath(name.removeprefix(PREFIX))
        is_inside = not path.is_absolute() and len(path.parts) >= 2 and ".." not in path.parts and "\0" not in name and "\\" not in name
        if not is_inside:
            raise InvalidRequest(f"'{name}' must be 'file:<version>/<file name>' and stay inside the model's folder", param="parameters")


def write_files(model: str, files: Mapping[str, bytes]) -> Path:
    """A new repository that holds only `model`, made of `files`; to be removed with `remove_files`. Call it in a thread."""
    repository = Path(tempfile.mkdtemp(prefix="trivium-model-"))
    try:
        for name, content in files.items():
            path = repository / model / name.removeprefix(PREFIX)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except BaseException:
        remove_files(repository)
        raise
    return repository


def remove_files(repository: Path) -> None:
    shutil.rmtree(repository, ignore_errors=True)

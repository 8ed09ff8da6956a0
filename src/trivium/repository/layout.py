"""Folders of a repository: which models there are, where each one's configuration is, and whether anything changed.

<repository>/<model>/config.pbtxt            may be missing
<repository>/<model>/configs/<name>.pbtxt    taken instead of it with --model-config-name <name>
<repository>/<model>/<version>/…             the model's files; a version is a positive integer
<repository>/<model>/…                       labels, warmup data
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trivium.errors import ConfigError, InvalidRequest, ModelNotFound
from trivium.repository.versions import version_folders

CONFIG_FILE: Final = "config.pbtxt"
MAX_NAME_BYTES: Final = 255

Stamp = tuple[tuple[str, int, int, int], ...]
"""Relative path, size, time of change and inode of every file under a folder, sorted."""


@dataclass(frozen=True)
class ModelFolder:
    """A model as it lies in a repository."""

    name: str
    repository: Path
    path: Path

    def config_file(self, config_name: str = "") -> Path | None:
        """The file to read, or None where there is none."""
        if config_name:
            chosen = self.path / "configs" / f"{config_name}.pbtxt"
            if chosen.is_file():
                return chosen
        plain = self.path / CONFIG_FILE
        return plain if plain.exists() else None

    def versions(self) -> dict[int, Path]:
        return version_folders(self.path)


def check_name(name: str) -> None:
    """Raises `InvalidRequest` for a name that can't be that of a folder in a repository."""
    is_component = name not in ("", ".", "..") and not any(character in name for character in "/\\\0")
    if not is_component or not _is_text(name) or len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise InvalidRequest(f"Invalid model name: {name!r} can't be the name of a folder in a model repository", param="model")


def check_repositories(repositories: Sequence[Path]) -> None:
    """Raises `ConfigError` unless every repository is a folder that can be read."""
    for path in repositories:
        try:
            with os.scandir(path):
                pass
        except OSError as error:
            raise ConfigError(f"failed to stat file {path}: {error.strerror}", param="model_repository") from None


def find_models(repositories: Sequence[Path]) -> dict[str, list[ModelFolder]]:
    """Every folder that may be a model, by name; more than one folder where a name is taken twice. Sorted by name."""
    found: dict[str, list[ModelFolder]] = {}
    for repository in repositories:
        for name in sorted(_folders(repository)):
            found.setdefault(name, []).append(ModelFolder(name, repository, repository / name))
    return {name: found[name] for name in sorted(found)}


def find_model(repositories: Sequence[Path], name: str) -> ModelFolder:
    """Raises `InvalidRequest` for a name that leaves the repository or is taken twice, `ModelNotFound` where there is no such folder."""
    check_name(name)
    found = [ModelFolder(name, repository, repository / name) for repository in repositories if (repository / name).is_dir()]
    if not found:
        raise ModelNotFound(f"there is no folder '{name}' in the repository", param="model")
    check_unique(found)
    return found[0]


def is_model(folder: Path) -> bool:
    """Whether a folder is a model rather than a repository of them."""
    return (folder / CONFIG_FILE).is_file() or bool(version_folders(folder))


def check_unique(folders: Sequence[ModelFolder]) -> None:
    """Raises `InvalidRequest` when the same model is in several repositories: no telling which one is meant."""
    if len(folders) > 1:
        raise InvalidRequest(f"model '{folders[0].name}' is in more than one repository", param="model")


def _folders(repository: Path) -> Iterator[str]:
    try:
        with os.scandir(repository) as scan:
            entries = list(scan)
    except OSError:
        return  # it went away while we serve; what was loaded from it goes on
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith(".") and _is_text(entry.name):
            yield entry.name


def _is_text(name: str) -> bool:
    """Bytes that aren't UTF-8 couldn't be named in an answer."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def stamp(folder: Path) -> Stamp:
    """Changes whenever a file under `folder` is written, replaced, added or removed; links are followed."""
    found: list[tuple[str, int, int, int]] = []
    _stamp(folder, "", found, frozenset())
    return tuple(sorted(found))


def _stamp(folder: Path, prefix: str, found: list[tuple[str, int, int, int]], above: frozenset[tuple[int, int]]) -> None:
    try:
        own = os.stat(folder)
        with os.scandir(folder) as scan:
            entries = list(scan)
    except OSError:
        return  # removed meanwhile
    if (own.st_dev, own.st_ino) in above:
        return  # a link to a folder it is in
    above |= {(own.st_dev, own.st_ino)}
    for entry in entries:
        if entry.name == "__pycache__":
            continue  # written by serving itself
        name = prefix + entry.name
        try:
            if entry.is_dir():
                found.append((f"{name}/", 0, 0, 0))
                _stamp(Path(entry.path), f"{name}/", found, above)
            else:
                status = entry.stat()
                found.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
        except OSError:
            continue  # removed meanwhile, or a link to nothing

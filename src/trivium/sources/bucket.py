"""A model at a URL: its files into Trivium's cache, only those that are read, safe for several processes at once."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trivium import env
from trivium.errors import ModelLoadError
from trivium.sources.objects import MAX_OBJECTS, Location, StoredObject, children, head, open_store, parse_url
from trivium.sources.paths import child_path, read_json_child
from trivium.sources.transfer import Download, fetch
from trivium.sources.wanted import (
    GGUF_PATTERN,
    INDEX_FILE,
    TOKENIZER_PATTERNS,
    gguf_parts,
    is_wanted,
    model_patterns,
    weight_map,
    whole_gguf_name,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int, str], None]
"""Name of the step, how much is done, of how much (0: unknown), unit."""

MANIFEST: Final = "trivium-source.json"
LOCK_FILE: Final = "trivium-source.lock"
MIN_FREE_BYTES: Final = 256 << 20


class Manifest(msgspec.Struct):
    """Where a cached folder came from, and the tag of each whole file in it."""

    url: str
    tags: dict[str, str]


def models_dir() -> Path:
    """The folder of models fetched by URL."""
    return env.cache_dir() / "models"


def cache_folder(url: str) -> Path:
    """Where the model at `url` is kept. The digest keeps two URLs apart that read alike."""
    location = parse_url(url)
    readable = "--".join(part for part in (location.scheme, location.host, *location.prefix.split("/")) if part)
    plain = "".join(char if char.isalnum() or char in "-_." else "-" for char in readable)[-100:].lstrip(".-")
    return models_dir() / f"{plain}-{hashlib.sha256(url.rstrip('/').encode()).hexdigest()[:12]}"


def download_model(url: str, *, with_weights: bool, progress: Progress | None = None) -> Path:
    """The folder with the model's files, or the .gguf file if `url` names one.

    Another process that wants the same model waits for this one. With the store out of reach, what was fetched whole before is used.
    Raises `ConfigError` for a URL that can't be one, `ModelLoadError` for what is missing or doesn't come.
    """
    location = parse_url(url)
    store = open_store(location)
    folder = cache_folder(url)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        try:
            _update(store, location, url, folder, with_weights=with_weights, progress=progress)
        except ModelLoadError as error:
            if _manifest(folder) is None:
                raise
            logger.warning("%s; the copy fetched earlier is used", error)
    if not location.prefix.endswith(".gguf"):
        return folder
    name = location.prefix.rpartition("/")[2]
    path = child_path(folder, name)
    if path is None:
        raise ModelLoadError(f"{url} was not found.")
    return path


def download_tokenizer(url: str, *, progress: Progress | None = None) -> Path:
    """The folder with the tokenizer's files at `url`."""
    location = parse_url(url)
    store = open_store(location)
    folder = cache_folder(url)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _fetch_missing(store, _choose(store, location, TOKENIZER_PATTERNS), url, folder, progress)
    return folder


def _locked(folder: Path) -> AbstractContextManager[Any]:
    from filelock import FileLock

    return FileLock(folder / LOCK_FILE)


def _update(store: ObjectStore, location: Location, url: str, folder: Path, *, with_weights: bool, progress: Progress | None) -> None:
    if location.prefix.endswith(".gguf"):
        _fetch_missing(store, _gguf_parts(store, location), url, folder, progress)
        return
    found = _choose(store, location, model_patterns(with_weights=with_weights))
    if not any(stored.name == "config.json" for stored in found):
        found = _only_gguf(store, location, url)
    _fetch_missing(store, found, url, folder, progress)
    if not location.lists and with_weights:
        _fetch_missing(store, _named_shards(store, location, folder), url, folder, progress)


def _choose(store: ObjectStore, location: Location, patterns: list[str]) -> list[StoredObject]:
    if location.lists:
        return [stored for stored in children(store, location.prefix) if is_wanted(stored.name, patterns)]
    names = [pattern for pattern in patterns if "*" not in pattern]
    asked = [head(store, f"{location.prefix}/{name}".lstrip("/")) for name in names]
    return [stored for stored in asked if stored is not None]


def _gguf_parts(store: ObjectStore, location: Location) -> list[StoredObject]:
    """The one file, or all parts of a model split by llama.cpp's gguf-split."""
    found: list[StoredObject] = []
    for path in gguf_parts(location.prefix)[:MAX_OBJECTS]:
        stored = head(store, path)
        if stored is None:
            raise ModelLoadError(f"{location.scheme}://{location.host}/{path} was not found.")
        found.append(stored)
    return found


def _only_gguf(store: ObjectStore, location: Location, url: str) -> list[StoredObject]:
    """A folder without config.json holds one .gguf model, perhaps in parts."""
    found = [stored for stored in children(store, location.prefix) if is_wanted(stored.name, [GGUF_PATTERN])] if location.lists else []
    if not found:
        raise ModelLoadError(f"{url} has neither a config.json nor a .gguf file.")
    models = sorted({whole_gguf_name(stored.name) for stored in found})
    if len(models) > 1:
        raise ModelLoadError(f"{url} has several .gguf files; name one of them: {', '.join(models)}")
    return found


def _named_shards(store: ObjectStore, location: Location, folder: Path) -> list[StoredObject]:
    """Weight files of a folder that can't be listed: those the index names, or the standard single one."""
    index = read_json_child(folder, INDEX_FILE)
    names = ["model.safetensors"] if index is None else sorted(set(weight_map(folder / INDEX_FILE, index).values()))
    found: list[StoredObject] = []
    for name in names:
        child_path(folder, name)  # refuses what is no plain name
        stored = head(store, f"{location.prefix}/{name}".lstrip("/"))
        if stored is None:
            raise ModelLoadError(f"{location.scheme}://{location.host}/{location.prefix} has no {name}.")
        found.append(stored)
    return found


def _fetch_missing(store: ObjectStore, found: list[StoredObject], url: str, folder: Path, progress: Progress | None) -> None:
    manifest = _manifest(folder) or Manifest(url, {})
    wanted: list[StoredObject] = []
    for stored in found:
        path = child_path(folder, stored.name)
        is_same = path is not None and path.stat().st_size == stored.size and manifest.tags.get(stored.name) == stored.tag
        if not is_same:
            wanted.append(stored)
    if wanted:
        _check_space(folder, sum(stored.size for stored in wanted))
        downloads = [Download(stored, folder / stored.name) for stored in wanted]
        fetch(store, downloads, None if progress is None else lambda done, total: progress("Downloading", done, total, "bytes"))
    manifest.tags.update({stored.name: stored.tag for stored in found})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def _check_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes + MIN_FREE_BYTES > free:
        raise ModelLoadError(f"The model needs {num_bytes >> 20} MiB in {folder}, where {free >> 20} MiB are free.")


def _manifest(folder: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None

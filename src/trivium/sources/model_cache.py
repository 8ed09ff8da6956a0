"""What has been downloaded, from wherever: listed and removed in one place."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trivium.errors import ModelNotFound
from trivium.sources.bucket import MANIFEST, Manifest, models_dir

Kind = Literal["huggingface", "url"]


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """One model in a cache. `num_bytes` is what its removal frees, `last_used` a Unix time."""

    name: str
    kind: Kind
    path: Path
    num_bytes: int
    last_used: float


def cached_models() -> list[CachedModel]:
    """Every model in the hub's cache and in our own, by name."""
    return sorted([*_from_hub(), *_from_urls()], key=lambda model: (model.name, model.kind))


def remove_cached(name: str) -> CachedModel:
    """Removes the model `name`, as `cached_models` names it, and says what it was. Raises `ModelNotFound`.

    A process that has it open goes on with what it has mapped.
    """
    found = next((model for model in cached_models() if model.name == name), None)
    if found is None:
        raise ModelNotFound(f"{name} is not in the cache.", param="model")
    shutil.rmtree(found.path)
    return found


def _from_hub() -> list[CachedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [repository for repository in repositories if repository.repo_type == "model"]
    return [
        CachedModel(name=found.repo_id, kind="huggingface", path=found.repo_path, num_bytes=found.size_on_disk, last_used=found.last_accessed)
        for found in models
    ]


def _from_urls() -> list[CachedModel]:
    found: list[CachedModel] = []
    for manifest in models_dir().glob(f"*/{MANIFEST}"):
        try:
            url = msgspec.json.decode(manifest.read_bytes(), type=Manifest).url
        except (OSError, msgspec.DecodeError):
            url = manifest.parent.name
        sizes = [path.stat().st_size for path in manifest.parent.iterdir() if path.is_file()]
        used = max(path.stat().st_atime for path in manifest.parent.iterdir())
        found.append(CachedModel(name=url, kind="url", path=manifest.parent, num_bytes=sum(sizes), last_used=used))
    return found

"""Download from a Hugging Face hub or mirror (`HF_ENDPOINT`), with checksums, resuming what a broken connection left."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trivium import env
from trivium.errors import ConfigError, ModelLoadError
from trivium.sources.objects import first_line
from trivium.sources.wanted import IGNORED_PATTERNS, TOKENIZER_PATTERNS, model_patterns

logger = logging.getLogger(__name__)

MAX_IDLE_RETRIES: Final = 5
"""Attempts in a row that brought nothing, after which a download is given up; one that brings something may be cut any number of times."""
MAX_RETRY_DELAY_S: Final = 8.0
CHUNK_BYTES: Final = 256 << 10

_QUANTIZATION = re.compile(r"[A-Za-z0-9_]{1,32}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_hub_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and ".." not in name and "--" not in name


def split_gguf_name(name: str) -> tuple[str, str] | None:
    """`owner/model:Q4_K_M` → its two parts; None for a name of another form."""
    model, colon, quantization = name.rpartition(":")
    return (model, quantization) if colon and is_hub_name(model) and _QUANTIZATION.fullmatch(quantization) else None


def gguf_patterns(quantization: str) -> list[str]:
    return [f"*{quantization}.gguf", f"*{quantization}-?????-of-?????.gguf"]


def first_gguf(folder: Path, name: str, quantization: str) -> Path:
    """The .gguf file of `folder`, or its first part, whose name ends in `quantization`, as in Q4_K_M. Raises `ModelLoadError`."""
    found = sorted(path for path in folder.glob("*.gguf") if re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).endswith(quantization))
    if not found:
        raise ModelLoadError(f"Hub model {name!r} has no .gguf file whose name ends in {quantization}.")
    return found[0]


def download_model(name: str, revision: str | None, *, with_weights: bool) -> Path:
    """The folder of the hub model `name` at `revision`. Raises `ModelLoadError` if it can't be had."""
    return download(name, revision, model_patterns(with_weights=with_weights))


def download_gguf(name: str, revision: str | None, quantization: str) -> Path:
    """One .gguf file of a repository that holds several quantizations, or its first part."""
    return first_gguf(download(name, revision, gguf_patterns(quantization)), name, quantization)


def download_tokenizer(name: str, revision: str | None) -> Path:
    return download(name, revision, TOKENIZER_PATTERNS)


def download(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The snapshot folder with the files of hub model `name` that match `patterns`.

    Raises `ConfigError` for what is no name, `ModelLoadError` for what the hub refuses, for a network that brings nothing any more, and for
    contents that differ from their checksum twice.
    """
    if not is_hub_name(name):
        raise ConfigError(f"{name!r} is neither a file or folder here nor a hub name like owner/model.", param="model")
    # The import takes 0.2 s and most starts need no hub.
    from huggingface_hub import constants, snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    # The library writes what it received in pieces of this size: of a connection that breaks sooner it would keep nothing.
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    where = f"model {name!r}" if revision is None else f"model {name!r} at revision {revision!r}"
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"

    def fetch() -> Path:
        return Path(str(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED_PATTERNS)))

    try:
        known = _complete_blobs(blobs)
        folder = retry_while_it_brings(fetch, lambda: _num_bytes(blobs), where)
        if not _remove_damaged(folder, known):
            return folder
        folder = retry_while_it_brings(fetch, lambda: _num_bytes(blobs), where)
        damaged = _remove_damaged(folder, known)
    except LocalEntryNotFoundError:
        raise ModelLoadError(f"Hub {where} is not in the local cache, and {_why_unreachable(constants.ENDPOINT)}.") from None
    except HfHubHTTPError as error:
        raise ModelLoadError(f"The hub has no {where} for us: {first_line(error)}") from None
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:  # the last two: answers in no form of the hub's
        raise ModelLoadError(f"Fetching {where} failed: {first_line(error)}") from None
    if damaged:
        raise ModelLoadError(f"{', '.join(damaged)} of hub {where} arrived twice with contents that differ from their checksum.")
    return folder


def retry_while_it_brings(fetch: Callable[[], Path], num_bytes: Callable[[], int], where: str) -> Path:
    """`fetch()`, again while each attempt leaves more bytes than the one before, and up to `MAX_IDLE_RETRIES` times while it doesn't.

    Only what a network does is tried again; what the hub answered is raised at once.
    """
    num_idle = 0
    while True:
        before = num_bytes()
        try:
            return fetch()
        except Exception as error:
            if not _is_transient(error):
                raise
            num_idle = 0 if num_bytes() > before else num_idle + 1
            if num_idle > MAX_IDLE_RETRIES:
                raise OSError(first_line(error)) from error
            logger.warning("fetching %s was cut short (%s); going on", where, first_line(error))
            time.sleep(min(MAX_RETRY_DELAY_S, 0.25 * 2**num_idle))


def _why_unreachable(endpoint: str) -> str:
    if env.flag("HF_HUB_OFFLINE"):
        return "offline mode is on (HF_HUB_OFFLINE): give a folder, or fetch it where there is a network"
    advice = "give a folder" if env.get("HF_ENDPOINT") else "name a mirror in HF_ENDPOINT, try --hub modelscope, or give a folder"
    return f"the hub at {endpoint} can't be reached: {advice}"


def _is_transient(error: Exception) -> bool:
    """By name: which of httpx and its successor the library talks through is the library's business."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & {"TransportError", "StreamError"})


def _complete_blobs(blobs: Path) -> set[str]:
    return {path.name for path in blobs.glob("*")} if blobs.is_dir() else set()


def _num_bytes(blobs: Path) -> int:
    """Bytes of the model that are here, whole files and begun ones."""
    return sum(path.stat().st_size for path in blobs.glob("*")) if blobs.is_dir() else 0


def _remove_damaged(folder: Path, known: set[str]) -> list[str]:
    """Names of newly fetched files whose contents aren't what the hub's checksum says; they are removed.

    The cache names a large file's contents by the SHA-256 the hub gave for it; the library itself compares sizes only.
    """
    damaged: list[str] = []
    for path in sorted(folder.iterdir()):
        blob = path.resolve()
        if blob.name in known or not _SHA256.fullmatch(blob.name):
            continue
        with blob.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != blob.name:
            damaged.append(path.name)
            path.unlink()
            blob.unlink(missing_ok=True)
    return damaged

"""Objects into files: in pieces, several at once, taken up where they were left, checked, and put in place in one move."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trivium.errors import ModelLoadError
from trivium.sources.objects import StoredObject, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PIECE_BYTES: Final = 16 << 20
NUM_CONNECTIONS: Final = 8
NUM_ATTEMPTS: Final = 6
FIRST_DELAY_S: Final = 0.25
"""Before the second attempt; doubled for each further one."""

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')

Progress = Callable[[int, int], None]
"""Bytes here and bytes in all."""


class _State(msgspec.Struct):
    """What is known of a begun file; lies beside it."""

    tag: str
    size: int
    pieces: list[int]


class Download:
    """One object on its way to `target`. Pieces are written into `target`.part at their places; `target`.state says which are there."""

    def __init__(self, stored: StoredObject, target: Path) -> None:
        self.stored = stored
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self._state_path = target.with_name(target.name + ".state")
        self._lock = threading.Lock()
        self._done = self._begin()

    @property
    def num_bytes_here(self) -> int:
        return sum(self._length(piece) for piece in self._done)

    def missing(self) -> list[int]:
        return [piece for piece in range(-(-self.stored.size // PIECE_BYTES)) if piece not in self._done]

    def span(self, piece: int) -> tuple[int, int]:
        """First byte and number of bytes."""
        return piece * PIECE_BYTES, self._length(piece)

    def write(self, piece: int, data: memoryview) -> None:
        start, length = self.span(piece)
        if len(data) != length:
            raise OSError(f"{len(data)} bytes came where {length} were asked for")
        descriptor = os.open(self.part, os.O_WRONLY)
        try:
            written = 0
            while written < length:
                written += os.pwrite(descriptor, data[written:], start + written)
        finally:
            os.close(descriptor)
        with self._lock:
            self._done.add(piece)
            self._save()

    def restart(self) -> None:
        self.part.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)
        self._done = self._begin()

    def finish(self) -> None:
        os.replace(self.part, self.target)
        self._state_path.unlink(missing_ok=True)

    def md5(self) -> str:
        with self.part.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    def _length(self, piece: int) -> int:
        return min(PIECE_BYTES, self.stored.size - piece * PIECE_BYTES)

    def _begin(self) -> set[int]:
        """Pieces of the very same object that an earlier attempt left."""
        try:
            state = msgspec.json.decode(self._state_path.read_bytes(), type=_State)
            is_same = (state.tag, state.size) == (self.stored.tag, self.stored.size)
            if is_same and self.part.stat().st_size == self.stored.size:
                return set(state.pieces)
        except (OSError, msgspec.DecodeError):
            pass
        with self.part.open("wb") as file:
            file.truncate(self.stored.size)
        return set()

    def _save(self) -> None:
        fresh = self._state_path.with_name(self._state_path.name + ".new")
        fresh.write_bytes(msgspec.json.encode(_State(self.stored.tag, self.stored.size, sorted(self._done))))
        os.replace(fresh, self._state_path)


def fetch(store: ObjectStore, downloads: Sequence[Download], progress: Progress | None = None) -> None:
    """All of `downloads`, each put in place once it is whole and checked.

    Raises `ModelLoadError` for what doesn't come in `NUM_ATTEMPTS` attempts and for contents that differ from their checksum.
    """
    _fetch_pieces(store, downloads, progress)
    for download in downloads:
        if not _is_sound(store, download):
            raise ModelLoadError(f"{download.stored.path} came twice with different contents, neither matching its checksum.")
        download.finish()


def _fetch_pieces(store: ObjectStore, downloads: Sequence[Download], progress: Progress | None) -> None:
    total = sum(download.stored.size for download in downloads)
    here = sum(download.num_bytes_here for download in downloads)
    lock = threading.Lock()
    stopping = threading.Event()

    def one(download: Download, piece: int) -> None:
        nonlocal here
        _fetch_piece(store, download, piece, stopping)
        with lock:
            here += download.span(piece)[1]
            if progress is not None:
                progress(here, total)

    if progress is not None:
        progress(here, total)
    with ThreadPoolExecutor(NUM_CONNECTIONS, thread_name_prefix="download") as pool:
        futures = [pool.submit(one, download, piece) for download in downloads for piece in download.missing()]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stopping.set()
            for future in futures:
                future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()


def _fetch_piece(store: ObjectStore, download: Download, piece: int, stopping: threading.Event) -> None:
    from obstore.exceptions import BaseError

    start, length = download.span(piece)
    for attempt in range(NUM_ATTEMPTS):
        try:
            download.write(piece, _read(store, download.stored, start, length))
            return
        except (BaseError, OSError) as error:
            if attempt + 1 == NUM_ATTEMPTS or isinstance(error, FileNotFoundError | PermissionError):
                raise ModelLoadError(f"Fetching {download.stored.path} failed: {first_line(error)}") from None
        if stopping.wait(FIRST_DELAY_S * 2**attempt):
            return


def _read(store: ObjectStore, stored: StoredObject, start: int, length: int) -> memoryview:
    """A piece of the very object that was looked at: of a changed one the store refuses it."""
    from obstore import get
    from obstore.exceptions import NotSupportedError, PreconditionError

    options: dict[str, object] = {"range": (start, start + length)}
    if stored.has_own_tag:
        options["if_match"] = stored.tag
    try:
        return memoryview(get(store, stored.path, options=options).bytes())  # pyright: ignore[reportArgumentType]
    except PreconditionError:
        raise ModelLoadError(f"{stored.path} was changed while it was being fetched; try again.") from None
    except NotSupportedError:
        # A plain web server may know no ranges: then each piece costs the whole file, which small files can bear.
        if stored.size > PIECE_BYTES:
            raise ModelLoadError(f"The server of {stored.path} answers no range requests, so that large files can't be resumed.") from None
        return memoryview(get(store, stored.path).bytes())[start : start + length]


def _is_sound(store: ObjectStore, download: Download) -> bool:
    """Whether the contents are right, as far as can be told.

    The tag of an object that was stored in one piece is its MD5, unless the store encrypts with keys of its own. So contents that don't
    match are fetched again: twice the same means that the tag is no MD5.
    """
    tag = _MD5.fullmatch(download.stored.tag)
    if tag is None:
        return True
    first = download.md5()
    if first == tag[1]:
        return True
    download.restart()
    _fetch_pieces(store, [download], None)
    second = download.md5()
    return second in (first, tag[1])

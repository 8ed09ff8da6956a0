"""Shared memory by key and range, trace and log settings, compression."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivium.errors import InvalidRequest, ModelNotFound, PayloadTooLarge, TriviumError, UnsupportedFeature
from trivium.frontends.kserve import shared_memory as module
from trivium.frontends.kserve.compression import UnsupportedEncoding, compress, decompress
from trivium.frontends.kserve.log_settings import LogSettings
from trivium.frontends.kserve.shared_memory import SharedMemoryRegions
from trivium.frontends.kserve.trace import TraceSettings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /dev/shm."""
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(module, "DIRECTORY", str(path))
    (path / "region").write_bytes(bytes(range(64)))
    return path


def test_a_region_is_read_and_written_at_its_offset(folder: Path) -> None:
    regions = SharedMemoryRegions()
    regions.register("r", "/region", 8, 32)
    assert regions.slice("r", 4, 2).read() == bytes([12, 13])
    regions.slice("r", 30, 2).write(b"\xaa\xbb", "OUT")
    assert (folder / "region").read_bytes()[38:40] == b"\xaa\xbb"
    assert [(found.name, found.key, found.offset, found.byte_size) for found in regions.status()] == [("r", "/region", 8, 32)]


@pytest.mark.parametrize("key", ["", "/", "..", "/..", "../region", "/a/b", "a/../region", "region\x00", "none", "/link", "/folder", "é"])
def test_keys_name_regular_files_of_the_folder_only(folder: Path, key: str) -> None:
    (folder / "link").symlink_to(folder / "region")
    (folder / "folder").mkdir()
    (folder.parent / "region").write_bytes(bytes(64))
    with pytest.raises(InvalidRequest, match="Unable to open shared memory region"):
        SharedMemoryRegions().register("r", key, 0, 8)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidRequest):
        SharedMemoryRegions().register("r", "pipe", 0, 1)


@pytest.mark.parametrize(("offset", "size"), [(-1, 8), (0, 0), (0, 65), (60, 5), (1 << 62, 1), (0, 1 << 63)])
def test_a_region_lies_within_its_file(folder: Path, offset: int, size: int) -> None:
    with pytest.raises(InvalidRequest):
        SharedMemoryRegions().register("r", "region", offset, size)


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, 33), (32, 1), (0, -1), (1 << 63, 1)])
def test_a_range_lies_within_its_region(folder: Path, offset: int, size: int) -> None:
    regions = SharedMemoryRegions()
    regions.register("r", "region", 8, 32)
    with pytest.raises(InvalidRequest, match="Invalid offset or byte size"):
        regions.slice("r", offset, size)


def test_a_file_that_was_cut_short_ends_the_request_only(folder: Path) -> None:
    regions = SharedMemoryRegions()
    regions.register("r", "region", 0, 64)
    given = regions.slice("r", 0, 64)
    os.truncate(folder / "region", 10)
    with pytest.raises(InvalidRequest, match="smaller"):
        given.read()
    with pytest.raises(InvalidRequest, match="smaller"):
        given.write(bytes(64), "OUT")
    with pytest.raises(InvalidRequest, match="at least 65 bytes"):
        given.write(bytes(65), "OUT")


def test_regions_come_and_go_by_name(folder: Path) -> None:
    regions = SharedMemoryRegions()
    regions.register("r", "region", 0, 8)
    with pytest.raises(InvalidRequest, match="already in manager"):
        regions.register("r", "region", 0, 8)
    used = regions.slice("r", 0, 8)
    regions.unregister("r")
    regions.unregister("r")
    assert used.read() == bytes(range(8))
    for call in (lambda: regions.slice("r", 0, 1), lambda: regions.status("r")):
        with pytest.raises(ModelNotFound):
            call()
    regions.register("r", "region", 0, 8)
    regions.unregister_all()
    assert regions.status() == []


def test_shared_memory_may_be_forbidden() -> None:
    with pytest.raises(UnsupportedFeature, match="allow-client-shm"):
        SharedMemoryRegions(is_allowed=False).register("r", "region", 0, 8)


# -- trace settings ---------------------------------------------------------------------------------------------------------------


def test_models_follow_the_global_settings_unless_they_have_their_own() -> None:
    settings = TraceSettings(trace_file="/tmp/traces")
    settings.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "10"})
    settings.update({"trace_rate": 7}, "m")
    assert (settings.values("m")["trace_rate"], settings.values("m")["trace_level"]) == ("7", ["TIMESTAMPS"])
    assert settings.values("other")["trace_rate"] == "10"
    settings.update({"trace_rate": None}, "m")
    settings.update({"trace_rate": None, "trace_level": "OFF"})
    assert settings.values("m") == settings.values()
    assert settings.values()["trace_rate"] == "1000"


@pytest.mark.parametrize(
    "changes",
    [
        {"foo": "1"},
        {"trace_level": []},
        {"trace_level": ["TENSORS"]},
        {"trace_level": 5},
        {"trace_rate": "0"},
        {"trace_rate": "x"},
        {"trace_count": "-2"},
        {"log_frequency": "9" * 30},
        {"trace_file": "/etc/passwd"},
        {"trace_mode": "opentelemetry"},
        {"trace_rate": "5", "foo": "1"},
    ],
)
def test_bad_trace_settings_change_nothing(changes: dict[str, object]) -> None:
    settings = TraceSettings(trace_file="/tmp/traces")
    before = settings.values()
    with pytest.raises(TriviumError):
        settings.update(changes)
    assert settings.values() == before


def test_tracing_needs_a_file() -> None:
    with pytest.raises(UnsupportedFeature, match="--trace-file"):
        TraceSettings().update({"trace_level": ["TIMESTAMPS"]})


# -- log settings -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown() -> Iterator[list[str]]:
    """Levels of the records that a handler of the root logger lets through."""
    names: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.append(record.levelname)

    root, ours = logging.getLogger(), logging.getLogger("trivium")
    level, handler = ours.level, Handler(logging.INFO)
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield names
    ours.setLevel(level)
    root.removeHandler(handler)


def _log_all() -> None:
    logger = logging.getLogger("trivium.test")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, "x")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"log_verbose_level": 1}, ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ({"log_info": False}, ["WARNING", "ERROR"]),
        ({"log_warning": False}, ["INFO", "ERROR"]),
        ({"log_info": False, "log_warning": False, "log_error": False}, []),
        ({"log_format": "ISO8601"}, ["INFO", "WARNING", "ERROR"]),
    ],
)
def test_levels_are_switched_one_by_one(shown: list[str], changes: dict[str, object], expected: list[str]) -> None:
    settings = LogSettings()
    settings.update(changes)
    _log_all()
    assert shown == expected
    settings.update({"log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0})
    shown.clear()
    _log_all()
    assert shown == ["INFO", "WARNING", "ERROR"]


@pytest.mark.parametrize(
    "changes",
    [
        {"log_file": "/etc/x"},
        {"log_info": 1},
        {"log_verbose_level": -1},
        {"log_verbose_level": True},
        {"log_format": "xml"},
        {"zzz": 1, "log_info": False},
    ],
)
def test_bad_log_settings_change_nothing(changes: dict[str, object]) -> None:
    settings = LogSettings()
    before = settings.values()
    with pytest.raises(TriviumError):
        settings.update(changes)
    assert settings.values() == before


# -- compression ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "function"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress), (b"identity", bytes)])
def test_bodies_are_unpacked(name: bytes, function: object) -> None:
    assert decompress(function(b"text"), name, max_bytes=10) == b"text"  # type: ignore[operator]


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(PayloadTooLarge):
        decompress(gzip.compress(bytes(10_000_000)), b"gzip", max_bytes=1000)


@pytest.mark.parametrize(("body", "name"), [(b"plain", b"gzip"), (gzip.compress(b"text")[:-3], b"gzip"), (b"", b"gzip")])
def test_broken_bodies_are_refused(body: bytes, name: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decompress(body, name, max_bytes=1000)


def test_unknown_encodings_are_refused() -> None:
    with pytest.raises(UnsupportedEncoding):
        decompress(b"x", b"br", max_bytes=1000)


@pytest.mark.parametrize(
    ("accepted", "used"),
    [(b"gzip", b"gzip"), (b"deflate, gzip", b"deflate"), (b"br, gzip;q=0.5", b"gzip"), (b"gzip;q=0", None), (b"br", None), (b"", None), (b"*", None)],
)
def test_answers_are_packed_as_the_client_likes(accepted: bytes, used: bytes | None) -> None:
    body, headers = compress(b"text" * 100, accepted)
    assert dict(headers).get(b"content-encoding") == used
    assert (decompress(body, used, max_bytes=1000) if used else body) == (b"text" * 100)

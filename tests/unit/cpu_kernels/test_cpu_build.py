"""Compiling and caching the library, and doing without it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from trivium.errors import ConfigError
from trivium.ops.attention import cpu as cpu_attention
from trivium.ops.cpu import build, fast_paths, library

needs_compiler = pytest.mark.skipif(library.kernels() is None, reason="no C++ compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were run, each writing an empty file in place of compiling."""
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_bytes(b"")

    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build, "find_compiler", lambda: "true")
    return commands


def test_built_once_and_found_again(cache: Path, compiled: list[list[str]]) -> None:
    first = build.build()
    assert first.is_file() and first.parent == cache
    assert len(compiled) == 1
    assert build.build() == first
    assert len(compiled) == 1
    assert build.build(extra_flags=("-O1",)) != first
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".so", ".so"]  # the lock; no scratch folders


def test_processes_that_need_it_at_once_build_it_once(cache: Path, compiled: list[list[str]]) -> None:
    threads = [threading.Thread(target=build.build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_a_changed_source_is_another_library(cache: Path, compiled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    sources = tmp_path / "sources"
    sources.mkdir()
    for source in build.SOURCES.iterdir():
        (sources / source.name).write_bytes(source.read_bytes() + b"\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.build() != first


def test_a_folder_that_others_can_write_to_is_refused(cache: Path, compiled: list[list[str]]) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(build.BuildError, match="written by others"):
        build.build()
    assert not compiled


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[list[str]]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(build.BuildError, match="TRIVIUM_CACHE"):
        build.build()


def test_without_a_compiler_it_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(build.BuildError, match="apt-get install"):
        build.build()


def test_a_compiler_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: "false")
    with pytest.raises(build.BuildError, match="exit code 1"):
        build.build()
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_where_it_cannot_be_built_everything_runs_on_torch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Path:
        raise build.BuildError("there is no C++ compiler; install one")

    monkeypatch.setattr(library, "build", fail)
    monkeypatch.setattr(library, "_loaded", [])
    with caplog.at_level(logging.WARNING):
        assert library.kernels() is None
        assert library.kernels() is None
    assert len(caplog.records) == 1 and "install one" in caplog.text
    assert fast_paths() == {}
    with pytest.raises(ConfigError, match="kernels"):
        cpu_attention.create_backend(torch.device("cpu"))


@needs_compiler
def test_it_builds_from_the_command_line(tmp_path: Path) -> None:
    environment = {**os.environ, "TRIVIUM_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "trivium.ops.cpu.build"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.suffix for path in (tmp_path / "kernels").iterdir() if path.name != "lock"] == [".so"]
    environment["PATH"] = "/nonexistent"
    environment["TRIVIUM_CACHE"] = str(tmp_path / "other")
    done = subprocess.run([sys.executable, "-m", "trivium.ops.cpu.build"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "install one" in done.stderr

"""Paths of models whose names have slashes: read by the models that are there."""

from __future__ import annotations

import pytest

from trivium.errors import ModelNotFound, NotReady
from trivium.frontends.kserve.model_paths import ModelPaths


class _Repository:
    def __init__(self, *names: str) -> None:
        self._names = names

    def versions(self, name: str) -> list[int]:
        if name not in self._names:
            raise ModelNotFound("no such model")
        if name.startswith("loading"):
            raise NotReady("not yet")
        return [1]


def _paths(*names: str) -> ModelPaths:
    return ModelPaths(_Repository(*names))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("m", ("m", "", "")),
        ("m/infer", ("m", "", "/infer")),
        ("m/versions/3", ("m", "3", "")),
        ("m/versions/3/generate_stream", ("m", "3", "/generate_stream")),
        ("m/trace/setting", ("m", "", "/trace/setting")),
        ("org/mod", ("org/mod", "", "")),
        ("org/mod/ready", ("org/mod", "", "/ready")),
        ("org/mod/versions/2/config", ("org/mod", "2", "/config")),
        ("org/mod/trace/setting", ("org/mod", "", "/trace/setting")),
        ("loading/mod/stats", ("loading/mod", "", "/stats")),
        # Names that look like parts of a path.
        ("a/versions/1/infer", ("a/versions/1", "", "/infer")),
        ("a/versions/1/versions/7/infer", ("a/versions/1", "7", "/infer")),
        ("a/config", ("a/config", "", "")),
        ("a/config/config", ("a/config", "", "/config")),
        # Both `b` and `b/versions/1` are there: the short name keeps its versions.
        ("b/versions/1/infer", ("b", "1", "/infer")),
        ("b/versions/1/versions/1/infer", ("b/versions/1", "1", "/infer")),
        # Nobody knows these.
        ("no/such/infer", ("no/such", "", "/infer")),
        ("no/such/versions/1", ("no/such", "1", "")),
        ("m/nonsense", ("m/nonsense", "", "")),
        ("", None),
    ],
)
def test_paths_are_read_by_the_names_that_are_known(rest: str, expected: tuple[str, str, str] | None) -> None:
    paths = _paths("m", "org/mod", "loading/mod", "a/versions/1", "a/config", "b", "b/versions/1")
    assert paths.split(rest) == expected


def test_a_path_of_nothing_but_slashes_costs_no_more_than_another() -> None:
    asked: list[str] = []

    class Counting(_Repository):
        def versions(self, name: str) -> list[int]:
            asked.append(name)
            return super().versions(name)

    ModelPaths(Counting()).split("/versions/1" * 20_000 + "/infer")  # type: ignore[arg-type]
    assert len(asked) <= 4

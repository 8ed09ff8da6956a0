"""Which model a path under `/v2/models/` means. Names may have slashes (`org/model`), plain or as %2F, and may look like parts of a path.

A path is split where the name of a model ends that has the version in the path. Of several such models the one with the shortest name counts,
so that no model takes over the paths of another; the longer name is still reached with its version. Where no model fits, the error is about
the shortest name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from starlette.routing import Match, Route, compile_path

from trivium.backends.tensor_repository import TensorRepository
from trivium.errors import ModelNotFound, TriviumError
from trivium.frontends.asgi import Scope

MODELS: Final = "/v2/models/"
ONE_MODEL: Final = "/v2/models/{model}"
ONE_VERSION: Final = "/v2/models/{model}/versions/{version}"
TRACE: Final = "/trace/setting"
TAILS: Final = ("/ready", "/config", "/stats", "/infer", "/generate", "/generate_stream", TRACE, "")
"""What may follow a model, and but for trace settings also a version of one."""

_VERSIONS: Final = "/versions/"
_CONTROL: Final = "/v2/repository/models/{model}/"
_MEMO: Final = "trivium.model_path"
_UNKNOWN, _KNOWN, _SERVED = range(3)
"""No such model; one without such a version, or that isn't ready; one that can answer."""


class ModelPath(NamedTuple):
    model: str
    version: str
    """Empty: any."""
    tail: str


class ModelPaths:
    """Splits paths by the models that a repository has at the moment."""

    def __init__(self, repository: TensorRepository) -> None:
        self._repository = repository

    def split(self, rest: str, tails: Sequence[str] = TAILS) -> ModelPath | None:
        """`rest` is what follows `/v2/models/`, decoded; None if no route has such a path."""
        best, best_rank = None, -1
        for path in _candidates(rest, tails):
            rank = self._rank(path.model, path.version)
            if rank == _SERVED:
                return path
            if rank > best_rank:
                best, best_rank = path, rank
        return best

    def split_name(self, name: str) -> tuple[str, str]:
        """Model and version of what stands between `/v2/models/` and a route's last part: `split` for requests that have no time to lose."""
        if "/" not in name:
            return name, ""
        model, _, version = name.rpartition(_VERSIONS)
        if model and version and "/" not in version and self._rank(model, version) == _SERVED:
            return model, version
        path = self.split(name, ("",))
        return (name, "") if path is None else (path.model, path.version)

    def _rank(self, model: str, version: str) -> int:
        try:
            versions = self._repository.versions(model)
        except ModelNotFound:
            return _UNKNOWN
        except TriviumError:
            return _KNOWN
        return _SERVED if not version or version in map(str, versions) else _KNOWN


class ModelRoute(Route):
    """A route below `/v2/models/{model}` whose model's name may have slashes."""

    def __init__(self, path: str, endpoint: Any, *, methods: list[str], paths: ModelPaths) -> None:
        super().__init__(path, endpoint, methods=methods)
        self._paths = paths
        self._has_version = path.startswith(ONE_VERSION)
        self._tail = path.removeprefix(ONE_VERSION if self._has_version else ONE_MODEL)
        self.path_regex, _, self.param_convertors = compile_path(MODELS + "{model:path}")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is Match.NONE:
            return match, child
        if _MEMO not in scope:
            scope[_MEMO] = self._paths.split(child["path_params"]["model"])
        path: ModelPath | None = scope[_MEMO]
        if path is None or path.tail != self._tail or bool(path.version) != self._has_version:
            return Match.NONE, {}
        child["path_params"] = {"model": path.model, **({"version": path.version} if path.version else {})}
        return match, child


class ControlRoute(Route):
    """Loads and unloads: the model is all that stands before the last part of the path."""

    def __init__(self, path: str, endpoint: Any, *, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.path_regex, _, self.param_convertors = compile_path(path.replace("{model}", "{model:path}"))


def kserve_route(path: str, endpoint: Any, method: str, paths: ModelPaths) -> Route:
    """The route of a line of the table."""
    if path.startswith(ONE_MODEL):
        return ModelRoute(path, endpoint, methods=[method], paths=paths)
    if path.startswith(_CONTROL):
        return ControlRoute(path, endpoint, methods=[method])
    return Route(path, endpoint, methods=[method])


def _candidates(rest: str, tails: Sequence[str]) -> Iterator[ModelPath]:
    """The ways to read a path, short names first. They are few, however many slashes it has."""
    for tail in tails:
        if not rest.endswith(tail):
            continue
        name = rest[: len(rest) - len(tail)]
        model, _, version = name.rpartition(_VERSIONS)
        if model and version and "/" not in version and tail != TRACE:
            yield ModelPath(model, version, tail)
        if name:
            yield ModelPath(name, "", tail)

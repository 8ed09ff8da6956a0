"""The flat list of settings behind a tree of config dataclasses: one `Setting` for each leaf field."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trivium.env import PREFIX

_SECRETS = frozenset({"api_key", "hf_token"})


@dataclasses.dataclass(frozen=True)
class Setting:
    """One leaf field. `path` leads to it from the root config: `("engine", "cache", "block_size")`."""

    name: str
    path: tuple[str, ...]
    section: str
    """First line of the docstring of the dataclass it is in."""
    annotation: Any
    """Its type without `None`."""
    is_optional: bool
    default: Any
    doc: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def is_secret(self) -> bool:
        return self.name in _SECRETS

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words of a `Literal`, else empty."""
        return get_args(self.annotation) if get_origin(self.annotation) is Literal else ()

    @property
    def type_name(self) -> str:
        """How the type is called in help and docs."""
        if self.choices:
            return " | ".join(self.choices)
        origin = get_origin(self.annotation) or self.annotation
        return {bool: "bool", int: "int", float: "float", str: "str", tuple: "list", dict: "JSON"}[origin]


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = [member for member in get_args(annotation) if member is not type(None)]
    assert len(members) == 1, f"{annotation}: settings have one type, or one type and None"
    return members[0], True


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING, f"{field.name} has no default"
    return field.default_factory()


def _leaves(config: type, path: tuple[str, ...]) -> Iterator[Setting]:
    hints = get_type_hints(config)
    section = (config.__doc__ or "").strip().splitlines()[0]
    for field in dataclasses.fields(config):
        here = (*path, field.name)
        if _is_config(hints[field.name]):
            yield from _leaves(hints[field.name], here)
            continue
        annotation, is_optional = _without_none(hints[field.name])
        yield Setting(field.name, here, section, annotation, is_optional, _default(field), str(field.metadata.get("doc", "")))


@functools.cache
def _settings_of(root: type) -> Mapping[str, Setting]:
    settings: dict[str, Setting] = {}
    for setting in _leaves(root, ()):
        assert setting.name not in settings, f"{setting.name} is in {setting.path} and {settings[setting.name].path}: flat names are unique"
        settings[setting.name] = setting
    return types.MappingProxyType(settings)


def settings_of(root: type) -> Mapping[str, Setting]:
    """All settings of a config dataclass and those inside it, by flat name, in order of declaration."""
    return _settings_of(root)


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` for the nearest known name, or nothing."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {nearest[0]}?" if nearest else ""

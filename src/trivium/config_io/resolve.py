"""Precedence: flag, then environment variable, then file, then the default; and the origin of each value is kept."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast, get_type_hints

import yaml as _yaml

from trivium.config import EngineConfig
from trivium.config_io.parse import check_value, parse_text
from trivium.config_io.settings import settings_of, suggest
from trivium.errors import ConfigError

T = TypeVar("T")
yaml: Any = _yaml
"""Its stubs leave too much unknown for strict checking."""

MAX_FILE_BYTES: Final = 1 << 20
DEFAULT: Final = "default"

_KUBERNETES_NAME = re.compile(r"_SERVICE_(HOST|PORT)(_.*)?$|_PORT_\d+_(TCP|UDP|SCTP)(_.*)?$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp|sctp)://")


@dataclasses.dataclass(frozen=True)
class Resolved(Generic[T]):
    """A config and where each of its values came from: `flag`, a variable's name, `FILE:LINE` or `default`."""

    config: T
    origins: Mapping[str, str]

    def value(self, name: str) -> Any:
        node: Any = self.config
        for attribute in settings_of(type(self.config))[name].path:
            node = getattr(node, attribute)
        return node


@dataclasses.dataclass(frozen=True)
class _Entry:
    value: Any
    origin: str


def resolve(
    root: type[T],
    *,
    flags: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    file: Path | None = None,
    within: type | None = None,
) -> Resolved[T]:
    """Build `root` from all sources. `flags` maps flat names to text, `variables` is `env.settings()`.

    Variables and the file may hold any valid setting of `within`, of which `root` is a part; what is not `root`'s is left unused.
    Raises `ConfigError` that names the setting, what is wrong with it and where it came from.
    """
    entries: dict[str, _Entry] = {}
    if file is not None:
        entries |= read_file(within or root, file)
    entries |= _from_variables(within or root, variables or {})
    entries = {name: entry for name, entry in entries.items() if name in settings_of(root)}
    entries |= _from_flags(root, flags or {})
    try:
        config = _construct(root, {name: entry.value for name, entry in entries.items()})
    except ConfigError as error:
        entry = entries.get(error.param or "")
        if entry is None:
            raise
        raise _located(error, entry.origin) from None
    origins = {name: entries[name].origin if name in entries else DEFAULT for name in settings_of(root)}
    return Resolved(config, origins)


def build(root: type[T], values: Mapping[str, Any]) -> T:
    """Build `root` from flat keyword arguments with Python values. Raises `ConfigError` for unknown names and wrong types."""
    settings = settings_of(root)
    for name in values:
        if name not in settings:
            raise ConfigError(f"{name} is not a setting{suggest(name, settings)}", param=name)
    return _construct(root, {name: check_value(settings[name], value) for name, value in values.items()})


def build_engine_config(**values: Any) -> EngineConfig:
    """`EngineConfig` from vLLM's engine arguments by their flat names."""
    return build(EngineConfig, values)


def _construct(config: type[T], values: Mapping[str, Any]) -> T:
    """Nested dataclasses from checked flat values; names that are not this config's are left to its siblings."""
    hints = get_type_hints(config)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, config)):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            arguments[field.name] = _construct(cast("type[Any]", hint), values)
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return config(**arguments)


def _located(error: ConfigError, origin: str) -> ConfigError:
    where = f"flag --{(error.param or '').replace('_', '-')}" if origin == "flag" else origin
    return ConfigError(f"{error.message.rstrip('.')} (from {where})", param=error.param)


def _from_flags(root: type, flags: Mapping[str, str]) -> dict[str, _Entry]:
    settings = settings_of(root)
    entries: dict[str, _Entry] = {}
    for name, text in flags.items():
        try:
            entries[name] = _Entry(parse_text(settings[name], text), "flag")
        except ConfigError as error:
            raise _located(error, "flag") from None
    return entries


def _is_from_kubernetes(name: str, value: str) -> bool:
    """Kubernetes sets `TRIVIUM_PORT=tcp://…` and the like in pods beside a service that is called trivium."""
    return bool(_KUBERNETES_NAME.search(name) or (name.endswith("_PORT") and _KUBERNETES_VALUE.match(value)))


def _from_variables(root: type, variables: Mapping[str, str]) -> dict[str, _Entry]:
    known = {setting.variable: setting for setting in settings_of(root).values()}
    entries: dict[str, _Entry] = {}
    for name, text in variables.items():
        if text == "" or _is_from_kubernetes(name, text):
            continue
        if name not in known:
            raise ConfigError(f"environment variable {name} is not a setting{suggest(name, known)}")
        try:
            entries[known[name].name] = _Entry(parse_text(known[name], text), name)
        except ConfigError as error:
            raise _located(error, name) from None
    return entries


def _parse_yaml(file: Path) -> _yaml.MappingNode | None:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {MAX_FILE_BYTES} bytes: not a config file")
        node: Any = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"can't read {file}: {error}") from None
    except _yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: {error.problem or 'not YAML'}") from None
    except _yaml.YAMLError as error:
        raise ConfigError(f"{file}: {error}") from None
    if isinstance(node, _yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return None
    if node is not None and not isinstance(node, _yaml.MappingNode):
        raise ConfigError(f"{file}:1: a config file is a mapping of settings, such as `max_model_len: 4096`")
    return node


def _plain(node: _yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def read_file(root: type, file: Path) -> dict[str, _Entry]:
    """Settings of a YAML file. Keys are the flat names, with `_` or `-`; an unknown or repeated one raises `ConfigError` with its line."""
    settings = settings_of(root)
    node = _parse_yaml(file)
    entries: dict[str, _Entry] = {}
    for key_node, value_node in node.value if node is not None else ():
        origin = f"{file}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        name = key.replace("-", "_")
        if name not in settings:
            raise ConfigError(f"{origin}: {key} is not a setting{suggest(name, settings)}", param=name)
        if name in entries:
            raise ConfigError(f"{origin}: {key} was already set at {entries[name].origin}", param=name)
        try:
            entries[name] = _Entry(check_value(settings[name], _plain(value_node)), origin)
        except (ConfigError, _yaml.YAMLError) as error:
            message = error.message if isinstance(error, ConfigError) else f"{name}: {error}"
            raise ConfigError(f"{origin}: {message}", param=name) from None
    return entries

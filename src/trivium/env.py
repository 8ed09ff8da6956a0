"""The one typed table of environment variables, and the only module that reads them.

Settings of Trivium itself (`TRIVIUM_MAX_MODEL_LEN`, …) are derived from the config dataclasses and read through `settings()`; the table
below holds what other tools define and Trivium honours. Values are read when asked for, never at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "TRIVIUM_"
"""Every setting's variable is this and the field's name in capitals."""

_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True)
class Variable:
    """One variable that Trivium reads; `secret` values are never shown."""

    name: str
    doc: str
    secret: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable("HF_ENDPOINT", "Base URL of the model hub or of a mirror."),
    Variable("HF_TOKEN", "Token for gated hub models.", secret=True),
    Variable("HF_HOME", "Folder that holds the hub cache and token; default ~/.cache/huggingface."),
    Variable("HF_HUB_CACHE", "Folder of downloaded hub models; default $HF_HOME/hub."),
    Variable("HF_HUB_OFFLINE", "1: never ask the hub, use what is cached."),
    Variable("OSS_ENDPOINT", "Endpoint of oss:// buckets, as in https://oss-cn-hangzhou.aliyuncs.com."),
    Variable("OSS_REGION", "Region of oss:// buckets."),
    Variable("OSS_ACCESS_KEY_ID", "Key of oss:// buckets; none: public ones only.", secret=True),
    Variable("OSS_ACCESS_KEY_SECRET", "Secret of oss:// buckets.", secret=True),
    Variable("CUDA_VISIBLE_DEVICES", "GPUs that may be used; empty: none."),
    Variable("OMP_NUM_THREADS", "CPU threads of the engine where --num-threads is not given."),
    Variable("XDG_CACHE_HOME", "Parent of Trivium's own cache folder; default ~/.cache."),
    Variable("NO_COLOR", "Anything: no colours on the terminal."),
    Variable("TRIVIUM_CACHE", "Trivium's own cache folder (compiled kernels, packed weights); default $XDG_CACHE_HOME/trivium."),
    Variable("TRIVIUM_LOG_LEVEL", "Least severe level that is logged: debug, info, warning or error; default info."),
    Variable("TRIVIUM_LOG_FORMAT", "auto, human or json; auto: human on a terminal, JSON elsewhere."),
)
_KNOWN = {variable.name: variable for variable in VARIABLES}


def get(name: str, default: str | None = None) -> str | None:
    """Value of a variable of the table; an empty value counts as unset, but for `CUDA_VISIBLE_DEVICES`, where it means no device."""
    assert name in _KNOWN, f"{name} is missing from env.VARIABLES"
    value = os.environ.get(name)
    if value is None or (value == "" and name != "CUDA_VISIBLE_DEVICES"):
        return default
    return value


def flag(name: str) -> bool:
    """Whether a variable of the table is set to something other than 0, false, no or off."""
    return (get(name) or "").strip().lower() not in _FALSE


def cache_dir() -> Path:
    """Trivium's own cache folder. It need not exist yet."""
    own = get("TRIVIUM_CACHE")
    if own is not None:
        return Path(own).expanduser()
    parent = get("XDG_CACHE_HOME")
    return (Path(parent).expanduser() if parent else Path.home() / ".cache") / "trivium"


def settings() -> dict[str, str]:
    """Every variable that may hold a setting: those that start with `TRIVIUM_` and are not in the table, in sorted order."""
    names = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in _KNOWN)
    return {name: os.environ[name] for name in names}


def foreign(name: str) -> str | None:
    """A variable of another server's that a command of ours takes over by name; an empty value counts as unset."""
    return os.environ.get(name) or None


def define(name: str, value: str) -> None:
    """Set a variable of the table for this process and those it starts."""
    assert name in _KNOWN, f"{name} is missing from env.VARIABLES"
    os.environ[name] = value


def child(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """A copy of the environment for a child process, with `changes` made; None removes a variable."""
    copy = dict(os.environ)
    for name, value in (changes or {}).items():
        if value is None:
            copy.pop(name, None)
        else:
            copy[name] = value
    return copy

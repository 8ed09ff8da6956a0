"""tritonserver's flags where Trivium's have other names or forms: translated before the command line is parsed.

Flags that both have under one name (`--model-repository`, `--grpc-port`, …) need nothing here, but that Triton's boolean ones take a value:
`--exit-on-error=false`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from trivium.errors import ConfigError

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})

_RENAMED: Final = {
    "--model-store": "--model-repository",
    "--http-port": "--port",
    "--http-address": "--host",
    "--http-max-input-size": "--max-tensor-bytes",
    "--exit-timeout-secs": "--drain-timeout-s",
}

_ONLY: Final = {
    "--allow-http": (_TRUE, "the HTTP port is always open"),
    "--model-namespacing": (_FALSE, "model names are unique among all repositories"),
    "--log-info": (_TRUE, "set TRIVIUM_LOG_LEVEL"),
    "--log-warning": (_TRUE, "set TRIVIUM_LOG_LEVEL"),
    "--log-error": (_TRUE, "set TRIVIUM_LOG_LEVEL"),
    "--log-verbose": (_FALSE, "set TRIVIUM_LOG_LEVEL=debug"),
    "--log-format": (frozenset({"default", "iso8601"}), "set TRIVIUM_LOG_FORMAT to human or json"),
    "--backend-directory": (frozenset[str](), "back ends are Python packages: install trivium[onnx] and the like"),
    "--cache-directory": (frozenset[str](), "the response cache is built in"),
    "--repoagent-directory": (frozenset[str](), "there are no repository agents"),
}
"""Accepted where they ask for what happens anyway, refused with a reason where they don't."""

_ADDRESSES: Final = ("--grpc-address", "--metrics-address")


def translate(args: Sequence[str], booleans: Collection[str]) -> list[str]:
    """`args` in Trivium's own words. `booleans`: flags that take no value. Raises `ConfigError` for what Trivium can't do."""
    found: list[str] = []
    pending = list(args)
    addresses: dict[str, str] = {}
    while pending:
        word = pending.pop(0)
        if word == "--":
            return [*found, word, *pending]
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if flag in _RENAMED:
            found.append(f"{_RENAMED[flag]}{equals}{value}")
        elif flag in _ONLY or flag in _VALUES or flag in _ADDRESSES:
            text = value if equals else _next(flag, pending)
            if flag in _ADDRESSES:
                addresses[flag] = text
            elif flag in _ONLY:
                _check(flag, text)
            else:
                found += _VALUES[flag](text)
        elif flag in booleans:
            found.append(_boolean(flag, value if equals else _peek_boolean(pending)))
        else:
            found.append(word)
    _check_addresses(addresses, found)
    return found


def _next(flag: str, pending: list[str]) -> str:
    if not pending:
        raise ConfigError(f"{flag} needs a value.", param=flag)
    return pending.pop(0)


def _peek_boolean(pending: list[str]) -> str:
    """The value of a flag that may have one behind it: only true and false are surely no other argument."""
    return pending.pop(0) if pending and pending[0].lower() in ("true", "false") else "true"


def _boolean(flag: str, text: str) -> str:
    if text.lower() not in _TRUE | _FALSE:
        raise ConfigError(f"{flag} must be true or false, got {text!r}.", param=flag)
    if text.lower() in _TRUE:
        return flag
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else f"--no-{flag.removeprefix('--')}"


def _check(flag: str, text: str) -> None:
    accepted, why = _ONLY[flag]
    if text.lower() not in accepted:
        raise ConfigError(f"{flag}={text} is refused: {why}.", param=flag)


def _strict_config(text: str) -> list[str]:
    return [_boolean("--disable-auto-complete-config", text)]


def _compression(text: str) -> list[str]:
    if text not in ("none", "low", "medium", "high"):
        raise ConfigError(f"--grpc-infer-response-compression-level must be none, low, medium or high, got {text!r}.", param="grpc_compression")
    return ["--grpc-compression", "none" if text == "none" else "gzip"]


_VALUES: Final[dict[str, Callable[[str], list[str]]]] = {
    "--strict-model-config": _strict_config,
    "--grpc-infer-response-compression-level": _compression,
}


def _check_addresses(addresses: dict[str, str], args: Sequence[str]) -> None:
    """All ports are on one address."""
    host = "0.0.0.0"
    for position, word in enumerate(args):
        if word.startswith("--host="):
            host = word.partition("=")[2]
        elif word == "--host" and position + 1 < len(args):
            host = args[position + 1]
    for flag, address in addresses.items():
        if address != host:
            raise ConfigError(f"{flag}={address} is refused: all ports are on one address, that of --host ({host}).", param=flag)

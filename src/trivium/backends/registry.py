"""Backends by name. A creator imports its backend when it is called, so that naming one costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trivium.backends.base import ModelBackend
from trivium.errors import ConfigError

Creator = Callable[..., ModelBackend]


def _create_llm(**arguments: Any) -> ModelBackend:
    from trivium.backends.llm import LLMBackend

    return LLMBackend(**arguments)


_CREATORS: dict[str, Creator] = {"llm": _create_llm}


def backend_names() -> list[str]:
    return sorted(_CREATORS)


def create_backend(name: str, /, **arguments: Any) -> ModelBackend:
    """Raises `ConfigError` for a name that isn't registered."""
    creator = _CREATORS.get(name)
    if creator is None:
        raise ConfigError(f"There is no backend {name!r}; known: {', '.join(backend_names())}.", param="backend")
    return creator(**arguments)

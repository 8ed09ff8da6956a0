"""Trivium: one server for language models.

`import trivium` is cheap: the public names below are loaded when they are first used, so that the server process never pays for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivium.llm import LLM
    from trivium.types import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]

_LAZY = {"LLM": "trivium.llm", "SamplingParams": "trivium.types", "StructuredOutputsParams": "trivium.types"}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

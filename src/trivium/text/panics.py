"""Errors of the tokenizers library as our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from trivium.errors import TriviumError


def reraise(error: BaseException, make: Callable[[str], TriviumError]) -> NoReturn:
    """Raises `make(message)` for what tokenizers raises: plain `Exception`s, and panics, whose class is a `BaseException` with no
    importable name. Anything else goes on as it is."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        raise make(str(error)) from None
    raise error

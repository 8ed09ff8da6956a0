"""The `X-Request-Timeout` header: how many seconds the client will wait."""

from __future__ import annotations

import math

from trivium.errors import InvalidRequest


def timeout_of(value: bytes | None) -> float | None:
    """Raises `InvalidRequest` for anything but a positive number of seconds."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest("X-Request-Timeout must be a positive number of seconds.", param="X-Request-Timeout")
    return seconds

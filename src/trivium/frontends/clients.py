"""Whose request it is: the value of the header that `fairness_header` names."""

from __future__ import annotations

import hashlib

from trivium.config import HttpConfig
from trivium.frontends.asgi import Scope, header


def client_of(scope: Scope, config: HttpConfig) -> str:
    """A digest, so that keys and names stay out of memory and logs; "" for requests without the header, who are one client together."""
    if not config.fairness_header:
        return ""
    value = header(scope, config.fairness_header.lower().encode())
    return "" if value is None else hashlib.blake2b(value, digest_size=12).hexdigest()

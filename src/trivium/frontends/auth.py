"""API keys: every route but those named public asks for one; compared in constant time, never logged."""

from __future__ import annotations

import hmac

from trivium.errors import Unauthorized
from trivium.frontends.asgi import Scope, header

_BEARER = b"bearer "


class ApiKeys:
    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = [key.encode() for key in keys]

    def check(self, scope: Scope) -> None:
        """Raises `Unauthorized` unless there are no keys or the request carries one of them."""
        if not self._keys:
            return
        given = header(scope, b"authorization") or b""
        if given[: len(_BEARER)].lower() != _BEARER:
            raise Unauthorized("An API key is needed: send the header 'Authorization: Bearer KEY'.")
        token = given[len(_BEARER) :].strip()
        is_known = False
        for key in self._keys:
            # No early exit: the time must not tell which key came close.
            is_known |= hmac.compare_digest(token, key)
        if not is_known:
            raise Unauthorized("The API key is not valid.")

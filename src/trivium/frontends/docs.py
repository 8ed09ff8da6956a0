"""`/docs` and `/openapi.json`: the description of the API, and a page of our own that shows it and lets one try it."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from trivium.frontends.asgi import HTML, Receive, Scope, Send, encode_json, send_bytes
from trivium.frontends.openapi import openapi_document

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class DocsRoutes:
    """ASGI endpoints. The page runs nothing but its own script, which its policy names by hash."""

    def __init__(self, root_path: str) -> None:
        self._document = encode_json(openapi_document(root_path))
        page = resources.files("trivium.frontends").joinpath("assets/docs.html").read_text(encoding="utf-8")
        self._page = page.encode()
        self._policy = _policy(page).encode()

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-security-policy", self._policy), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
        await send_bytes(send, self._page, content_type=HTML, headers=headers)

    async def document(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, self._document)


def _policy(page: str) -> str:
    hashes = {kind: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for kind, text in _INLINE.findall(page)}
    sources = " ".join(f"{kind}-src 'sha256-{digest}';" for kind, digest in sorted(hashes.items()))
    return f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; {sources}"

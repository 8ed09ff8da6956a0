"""Stand-ins for a model hub: they serve a folder's files over the HTTP interface of the Hugging Face hub or of ModelScope, with faults to order."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class Faults:
    """What goes wrong on the way. Counts go down as faults happen."""

    cut_after: int | None = None
    """Bytes of a body after which the connection is closed, each time."""
    num_busy: int = 0
    """Requests for contents that are answered with 429."""
    num_damaged: int = 0
    """Answers whose first byte is changed."""
    token: str | None = None
    """What a client must bring."""


@dataclass
class Hub:
    """`files` by name; `asked` counts requests for the contents of each file."""

    name: str
    files: dict[str, bytes]
    faults: Faults = field(default_factory=Faults)
    url: str = ""
    asked: dict[str, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub.paths.append(f"{self.command} {self.path}")
        if self.hub.faults.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.faults.token}":
            self._json(401, {"error": "Invalid credentials"})
            return
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = parse_qs(parts.query)
        model = self.hub.name
        if path.startswith(f"/api/models/{model}/tree/"):
            self._json(200, self._tree())
        elif path.startswith(f"/api/models/{model}"):
            self._json(200, self._hugging_face_info())
        elif path.startswith(f"/{model}/resolve/"):
            self._contents(path.removeprefix(f"/{model}/resolve/").partition("/")[2])
        elif path == f"/api/v1/models/{model}/repo/files":
            self._json(200, {"Code": 200, "Success": True, "Data": {"Files": self._modelscope_files()}})
        elif path == f"/api/v1/models/{model}/repo":
            self._contents(query["FilePath"][0])
        elif path == f"/api/v1/models/{model}/revisions":
            revisions = {"RevisionMap": {"Branches": [{"Revision": "master"}], "Tags": []}}
            self._json(200, {"Code": 200, "Success": True, "Data": revisions})
        else:
            self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def _hugging_face_info(self) -> dict[str, Any]:
        siblings = [{"rfilename": name} for name in self.hub.files]
        return {"id": self.hub.name, "modelId": self.hub.name, "sha": COMMIT, "private": False, "siblings": siblings, "tags": [], "downloads": 0}

    def _tree(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, data in self.hub.files.items():
            digest = hashlib.sha256(data).hexdigest()
            lfs = {"oid": digest, "size": len(data), "pointerSize": 134}
            found.append({"type": "file", "path": name, "size": len(data), "oid": digest[:40], "lfs": lfs})
        return found

    def _modelscope_files(self) -> list[dict[str, Any]]:
        return [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(data), "Sha256": hashlib.sha256(data).hexdigest(), "Revision": COMMIT}
            for name, data in self.hub.files.items()
        ]

    def _contents(self, name: str) -> None:
        data = self.hub.files.get(name)
        if data is None:
            self._json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        is_get = self.command == "GET"
        faults = self.hub.faults
        if is_get and faults.num_busy > 0:
            faults.num_busy -= 1
            self._json(429, {"error": "slow down"}, {"Retry-After": "0"})
            return
        digest = hashlib.sha256(data).hexdigest()
        start, end, is_part = _span(self.headers.get("Range"), len(data))
        headers = {"ETag": f'"{digest}"', "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": COMMIT}
        headers |= {"Accept-Ranges": "bytes", "Content-Length": str(end - start)}
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self.send_response(206 if is_part else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if is_get:
            self.hub.asked[name] = self.hub.asked.get(name, 0) + 1
            self._send(data[start:end])

    def _send(self, body: bytes) -> None:
        faults = self.hub.faults
        if faults.num_damaged > 0 and body:
            faults.num_damaged -= 1
            body = bytes([body[0] ^ 0xFF]) + body[1:]
        if faults.cut_after is not None and len(body) > faults.cut_after:
            self.wfile.write(body[: faults.cut_after])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _span(header: str | None, size: int) -> tuple[int, int, bool]:
    if not header or not header.startswith("bytes="):
        return 0, size, False
    start, _, end = header.removeprefix("bytes=").partition("-")
    return int(start), min(size, int(end) + 1 if end else size), True


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

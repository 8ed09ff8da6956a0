"""A conversation with a running server, over the OpenAI API and the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, cast

from trivium.cli.server_api import ServerApi
from trivium.errors import GenerationFailed

Message = dict[str, str]

MAX_LINE_BYTES: Final = 1 << 20


class Talker(Protocol):
    """Whatever answers: a server somewhere, or an engine of our own."""

    @property
    def model(self) -> str: ...

    def reply(self, messages: list[Message], sampling: Mapping[str, Any]) -> Iterator[str]:
        """The answer in pieces, as they come. Closing the iterator stops the generation."""
        ...

    def close(self) -> None: ...


class RemoteTalker:
    """Raises `NotReady` when nothing answers at `url`, `Unauthorized`, `ModelNotFound`, `InvalidRequest` as the server says."""

    def __init__(self, url: str, *, model: str, api_key: str | None) -> None:
        self._server = ServerApi(url, api_key=api_key)
        self.model = model or str(self._server.call("GET", "/v1/models")["data"][0]["id"])

    def reply(self, messages: list[Message], sampling: Mapping[str, Any]) -> Iterator[str]:
        body = json.dumps({"model": self.model, "messages": messages, "stream": True, **sampling})
        with self._server.open("POST", "/v1/chat/completions", body) as response:
            yield from _deltas(response)

    def close(self) -> None:
        pass


def _deltas(response: http.client.HTTPResponse) -> Iterator[str]:
    """Text pieces of a stream of chat chunks. Raises `GenerationFailed` when it breaks off or carries an error."""
    while True:
        try:
            line = response.readline(MAX_LINE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise GenerationFailed(f"the stream broke off: {error}") from None
        if not line:
            raise GenerationFailed("the stream broke off before its end")
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = cast(dict[str, Any], json.loads(data))
        if "error" in chunk:
            raise GenerationFailed(str(chunk["error"].get("message", "the server failed")))
        for choice in chunk.get("choices", ()):
            text = choice["delta"].get("content")
            if text:
                yield text

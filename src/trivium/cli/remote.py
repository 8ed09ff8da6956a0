"""A conversation with a running server, over the OpenAI API and the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, cast
from urllib.parse import SplitResult, urlsplit

from trivium.errors import ConfigError, GenerationFailed, InvalidRequest, ModelNotFound, NotReady, TriviumError, Unauthorized

Message = dict[str, str]

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 600.0
MAX_LINE_BYTES: Final = 1 << 20
MAX_ERROR_BYTES: Final = 1 << 16

_BY_STATUS: Final[dict[int, type[TriviumError]]] = {401: Unauthorized, 404: ModelNotFound, 429: NotReady, 503: NotReady}


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
        self._url = _split(url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.model = model or self._first_model()

    def reply(self, messages: list[Message], sampling: Mapping[str, Any]) -> Iterator[str]:
        body = json.dumps({"model": self.model, "messages": messages, "stream": True, **sampling})
        connection = self._connect()
        try:
            yield from _deltas(self._request(connection, "POST", "/v1/chat/completions", body))
        finally:
            connection.close()

    def close(self) -> None:
        pass

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            models = json.loads(self._request(connection, "GET", "/v1/models", None).read())
        finally:
            connection.close()
        return str(models["data"][0]["id"])

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "localhost", self._url.port, timeout=CONNECT_TIMEOUT_S)

    def _request(self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None) -> http.client.HTTPResponse:
        try:
            connection.connect()
            connection.sock.settimeout(READ_TIMEOUT_S)
            connection.request(method, self._url.path.rstrip("/") + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"nothing answers at {self._url.geturl()}: {error}") from None
        if response.status != 200:
            raise _error(response)
        return response


def _split(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is not an http or https URL", param="url")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment="")


def _error(response: http.client.HTTPResponse) -> TriviumError:
    text = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {response.status} {response.reason}"
    default = InvalidRequest if 400 <= response.status < 500 else GenerationFailed
    return _BY_STATUS.get(response.status, default)(message)


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

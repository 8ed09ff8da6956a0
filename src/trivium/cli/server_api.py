"""Requests to a running server from the command line, over the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from trivium.errors import ConfigError, GenerationFailed, InvalidRequest, ModelNotFound, NotReady, TriviumError, Unauthorized

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 600.0
MAX_ERROR_BYTES: Final = 1 << 16

_BY_STATUS: Final[dict[int, type[TriviumError]]] = {401: Unauthorized, 404: ModelNotFound, 429: NotReady, 503: NotReady}


class ServerApi:
    """Raises `NotReady` when nothing answers at `url`, `Unauthorized`, `ModelNotFound`, `InvalidRequest` as the server says."""

    def __init__(self, url: str, *, api_key: str | None) -> None:
        self._url = _split(url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @contextmanager
    def open(self, method: str, path: str, body: str | None = None) -> Generator[http.client.HTTPResponse, None, None]:
        """A response with status 200, to be read inside the `with`."""
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname or "localhost", self._url.port, timeout=CONNECT_TIMEOUT_S)
        try:
            yield self._request(connection, method, path, body)
        finally:
            connection.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the answer to `body` as JSON; None for an empty one."""
        with self.open(method, path, None if body is None else json.dumps(body)) as response:
            text = response.read()
        return json.loads(text) if text.strip() else None

    def _request(self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None) -> http.client.HTTPResponse:
        try:
            connection.connect()
            connection.sock.settimeout(READ_TIMEOUT_S)
            connection.request(method, self._url.path.rstrip("/") + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"nothing answers at {self._url.geturl()}: {error}") from None
        if response.status != 200:
            raise self._refused(_error(response))
        return response

    def _refused(self, error: TriviumError) -> TriviumError:
        if not isinstance(error, Unauthorized):
            return error
        if "Authorization" not in self._headers:
            return Unauthorized(f"{self._url.geturl()} wants an API key: name it with --api-key")
        return Unauthorized(f"{self._url.geturl()} refused the key of --api-key: {error.message}")


def _split(url: str) -> SplitResult:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is not an http or https URL", param="url")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="", fragment="")


def _error(response: http.client.HTTPResponse) -> TriviumError:
    """OpenAI's form of errors is an object with a message, KServe's the message alone."""
    text = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
    try:
        error: object = json.loads(text)["error"]
        message = str(cast("dict[str, Any]", error)["message"]) if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {response.status} {response.reason}"
    default = InvalidRequest if 400 <= response.status < 500 else GenerationFailed
    return _BY_STATUS.get(response.status, default)(message)

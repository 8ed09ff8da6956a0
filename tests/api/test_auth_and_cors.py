"""API keys and origins."""

from __future__ import annotations

import httpx
import openai
import pytest
from helpers_server import ServerProcess

KEYS = ["first-secret", "zweiter-schlüssel"]
OPTIONS = {"http": {"api_key": KEYS, "allowed_origins": ["https://good.example"], "root_path": "/prefix"}}

ROUTES = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/"),
    ("POST", "/generate"),
    ("POST", "/generate_stream"),
    ("POST", "/chat_tokenize"),
    ("POST", "/invocations"),
    ("POST", "/vertex"),
    ("GET", "/info"),
    ("GET", "/version"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/no-such-route"),
    ("GET", "//health"),
    ("GET", "/health/"),
    ("GET", "/metrics/../version"),
    ("PUT", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "authorization",
    [None, b"", b"Bearer", b"Bearer first-secre", b"Bearer first-secret2", b"Basic first-secret", b"first-secret", b"Bearer \xff\xfe"],
)
def test_every_route_but_health_and_metrics_asks_for_a_key(http: httpx.Client, method: str, path: str, authorization: bytes | None) -> None:
    headers = {} if authorization is None else {b"Authorization": authorization}
    # Joined by hand: to httpx, "//health" alone is a host.
    answer = http.request(method, str(http.base_url).rstrip("/") + path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert "API key" in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/metrics", "/ping", "/"])
def test_health_and_metrics_are_public(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(http: httpx.Client, key: str) -> None:
    for scheme in (b"Bearer ", b"bearer "):
        assert http.get("/v1/models", headers={b"Authorization": scheme + key.encode()}).status_code == 200


def test_the_official_client(server: ServerProcess) -> None:
    with server.openai(api_key=KEYS[0]) as good, server.openai(api_key="wrong") as bad:
        assert good.models.list().data[0].id == "fake"
        with pytest.raises(openai.AuthenticationError):
            bad.models.list()


def test_keys_never_reach_the_log(server: ServerProcess, http: httpx.Client) -> None:
    http.get("/v1/models", headers={b"Authorization": b"Bearer first-secret"})
    http.get("/v1/models", headers={b"Authorization": b"Bearer wrong-secret"})
    assert "secret" not in "".join(server.log)


def test_cors_lets_the_named_origin_in_and_no_other(http: httpx.Client) -> None:
    preflight = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    answer = http.options("/v1/completions", headers=preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    refused = http.options("/v1/completions", headers={**preflight, "Origin": "https://bad.example"})
    assert "access-control-allow-origin" not in refused.headers
    error = http.get("/v1/models", headers={"Origin": "https://good.example"})
    assert error.status_code == 401
    assert error.headers["access-control-allow-origin"] == "https://good.example"


def test_a_preflight_with_a_body_that_never_comes_does_not_hold_the_connection(server: ServerProcess) -> None:
    head = b"OPTIONS /prefix/v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://good.example\r\nAccess-Control-Request-Method: GET\r\n"
    with server.raw(head + b"Content-Length: 1000\r\n\r\n", timeout_s=5) as connection:
        assert connection.read_until_closed().startswith(b"HTTP/1.1 200")

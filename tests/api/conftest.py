"""One server process for each test module that asks for `server`; a module may set `OPTIONS`."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import huggingface_hub.constants
import openai
import pytest
from helpers_server import ServerProcess


@pytest.fixture(autouse=True)
def hub_client_may_reach_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline mode keeps these tests from the hub, but the hub's own client library would then not talk to our server either."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    process = ServerProcess(**getattr(request.module, "OPTIONS", {}))
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.http() as made:
        yield made

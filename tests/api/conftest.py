"""One server process for each test module that asks for `server`; a module may set `OPTIONS`."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from helpers_server import ServerProcess


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

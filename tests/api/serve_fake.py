"""A server process around the scripted engine: `python serve_fake.py '{"http": {…}, "engine": {…}, "settings": {…}}'` prints its port."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent / "null" / "service"))

from helpers_scripted_engine import FakeEngine, fake_backend

from trivium import log
from trivium.cli.serve import service_limits
from trivium.config import HttpConfig, ModelSettings, TgiConfig
from trivium.frontends.app import create_app
from trivium.frontends.server import bind, port_of, serve
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService


async def main(options: dict[str, Any]) -> int:
    http = {"host": "127.0.0.1", "port": 0, "uvicorn_log_level": "warning", **options.get("http", {})}
    tgi = TgiConfig(**options.get("tgi", {}))
    config = HttpConfig(**{name: tuple(value) if isinstance(value, list) else value for name, value in http.items()}, tgi=tgi)
    sock = bind(config)
    registry = Registry()
    registry.names = config.metrics_names
    manager = ModelManager()
    engine = FakeEngine(**options.get("engine", {}))
    settings = ModelSettings(**{"model": "fake", **options.get("settings", {})})
    manager.add(tuple(options.get("names", ("fake", "fake-alias"))), fake_backend(engine, registry, settings=settings, **options.get("backend", {})))
    service = InferenceService(manager, limits=service_limits(config), registry=registry)
    print(port_of(sock), flush=True)
    try:
        return await serve(create_app(service, config), config, sock=sock)
    finally:
        await service.close()


if __name__ == "__main__":
    log.setup(level="info", style="human")
    run = asyncio.run if "--asyncio" in sys.argv else uvloop.run
    sys.exit(run(main(json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))))

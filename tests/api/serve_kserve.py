"""A KServe server process around in-process models: `python serve_kserve.py '{"folder": …, "http": {…}}'` prints its ports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import uvloop
from helpers_kserve_models import CONFIGS, MORE_CONFIGS, make_repository, write_repository

from trivium import log
from trivium.config import GrpcConfig, HttpConfig, ServerConfig
from trivium.frontends.app import create_app
from trivium.frontends.kserve.server_state import KserveState
from trivium.frontends.listeners import Listeners
from trivium.frontends.server import bind, port_of, serve
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService, ServiceLimits


async def main(options: dict[str, Any]) -> int:
    config = HttpConfig(**{"host": "127.0.0.1", "port": 0, "uvicorn_log_level": "warning", **options.get("http", {})})
    folder = Path(options["folder"])
    configs = CONFIGS if options.get("only_recorded") else {**CONFIGS, **MORE_CONFIGS}
    write_repository(folder, configs)
    repository = make_repository(folder, control_mode="explicit", load_models=("*",))
    await repository.start()
    sock = bind(config)
    service = InferenceService(ModelManager(), limits=ServiceLimits(), registry=Registry(), repository=repository)
    grpc = GrpcConfig(**{"grpc_port": 0, "metrics_port": 0, **options.get("grpc", {})})
    state = KserveState(grpc)
    listeners = Listeners(service, ServerConfig(http=config, grpc=grpc), state)
    await listeners.start()
    print(port_of(sock), listeners.grpc_port, listeners.metrics_port, flush=True)
    try:
        return await serve(create_app(service, config, state=state), config, sock=sock)
    finally:
        await listeners.close()
        await service.close()
        await repository.close()


if __name__ == "__main__":
    log.setup(level="info", style="human")
    sys.exit(uvloop.run(main(json.loads(sys.argv[1]))))

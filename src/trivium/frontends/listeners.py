"""What listens beside the HTTP server: KServe's gRPC service and the metrics port."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Final

from trivium.config import HttpConfig, ServerConfig
from trivium.errors import ConfigError
from trivium.frontends.kserve.grpc_server import GrpcServer
from trivium.frontends.kserve.server_state import KserveState
from trivium.frontends.metrics_port import MetricsServer
from trivium.frontends.server import bind, port_of
from trivium.service import InferenceService

GRPC_PORT: Final = 8001
METRICS_PORT: Final = 8002
"""Triton's, where there is a model repository."""


class Listeners:
    """Made, started and closed on the server's event loop."""

    def __init__(self, service: InferenceService, config: ServerConfig, state: KserveState) -> None:
        self._service = service
        self._config = config
        self._state = state
        self._grpc: GrpcServer | None = None
        self._metrics: MetricsServer | None = None
        self.grpc_port: int | None = None
        self.metrics_port: int | None = None
        """Where they listen; None: they don't."""

    async def start(self) -> None:
        """Raises `ConfigError` for a port that can't be had."""
        metrics_port = _port(self._config.grpc.metrics_port, METRICS_PORT, self._config, is_allowed=self._config.grpc.allow_metrics)
        if metrics_port is not None:
            sock = _bind(self._config.http, metrics_port, "metrics_port")
            self._metrics = MetricsServer(self._service, self._config.http)
            self._metrics.start(sock)
            self.metrics_port = port_of(sock)
        grpc_port = _port(self._config.grpc.grpc_port, GRPC_PORT, self._config, is_allowed=self._config.grpc.allow_grpc)
        if grpc_port is not None:
            sock = _bind(self._config.http, grpc_port, "grpc_port")
            self._grpc = GrpcServer(self._service, self._config.grpc, self._config.http, self._state)
            await self._grpc.start(sock)
            self.grpc_port = port_of(sock)

    async def close(self) -> None:
        """To be called once the service has drained."""
        if self._grpc is not None:
            await self._grpc.close()
        if self._metrics is not None:
            await self._metrics.close()
        self._state.traces.close()


def _bind(config: HttpConfig, port: int, setting: str) -> socket.socket:
    try:
        return bind(replace(config, port=port))
    except ConfigError as error:
        raise ConfigError(error.message, param=setting) from None


def _port(given: int | None, default: int, config: ServerConfig, *, is_allowed: bool) -> int | None:
    if not is_allowed:
        return None
    return default if given is None and config.repository.model_repository else given

"""`trivium serve [MODEL]`: the port first, then the model, then a block that says how to use it."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from trivium import env, log
from trivium.cli.announce import Ports, announce
from trivium.cli.loading import Loaded, check_model, load_backend, served_names
from trivium.cli.model_bars import ModelBars
from trivium.cli.options import CONTEXT, SettingsCommand, resolve_options, setting_options
from trivium.cli.repository import adopt, make_repository
from trivium.cli.terminal import Steps
from trivium.cli.vllm_flags import check_foreign, foreign_options
from trivium.config import HttpConfig, ServerConfig
from trivium.errors import ConfigError
from trivium.frontends.app import create_app
from trivium.frontends.kserve.server_state import KserveState
from trivium.frontends.listeners import Listeners
from trivium.frontends.server import bind, port_of, serve
from trivium.metrics.catalogue import LOG_LINES_DROPPED
from trivium.metrics.instruments import Registry
from trivium.repository.layout import check_repositories
from trivium.repository.manager import ModelManager
from trivium.repository.repository import ModelRepository
from trivium.service import InferenceService, ServiceLimits

logger = logging.getLogger(__name__)

ENGINE_LOST: Final = 1
"""Exit code when the engine died and could not be restarted."""


@click.command(name="serve", cls=SettingsCommand, context_settings=CONTEXT)
@click.argument("model_argument", metavar="[MODEL]", default="")
@setting_options(ServerConfig)
@foreign_options
def command(*, model_argument: str, **options: Any) -> int:
    """Serve MODEL over the OpenAI API: a folder, a .gguf file or a hub name; without it, the packaged model.

    With --model-repository, serve the models of a folder, of any kind, over KServe's protocol; language models among them over the OpenAI API too.

    Every flag is also a TRIVIUM_* variable and a line of a --config file; `trivium config show --origin` tells which one counts.
    """
    check_foreign(options)
    if model_argument and options["model"] not in (None, model_argument):
        raise ConfigError(f"Two models were named: {model_argument} and --model {options['model']}.", param="model")
    config = resolve_options(ServerConfig, options, model=model_argument or options["model"]).config
    log.setup()
    log.register_secrets([*config.http.api_key, env.get("HF_TOKEN") or ""])
    if serves_model(config):
        check_model(config.engine.model, tensor_parallel_size=config.engine.parallel.tensor_parallel_size)
    check_repositories([Path(path) for path in config.repository.model_repository])
    sock = bind(config.http)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, sock))


async def run(config: ServerConfig, sock: socket.socket) -> int:
    """Listen at once (readiness false, requests answered with 503) and load meanwhile. Returns the exit code.

    Raises what the model failed to load with.
    """
    started = time.monotonic()
    manager = ModelManager()
    registry = _registry(config.http)
    bars = ModelBars()
    names = served_names(config.engine.model) if serves_model(config) else ()
    if names:
        manager.expect(names)
    repository = make_repository(config, manager, registry, bars) if config.repository.model_repository else None
    service = InferenceService(manager, limits=service_limits(config.http), registry=registry, repository=repository)
    state = KserveState(config.grpc)
    listeners = Listeners(service, config, state)
    await listeners.start()
    server = asyncio.create_task(serve(create_app(service, config.http, state=state), config.http, sock=sock), name="http")
    loading = asyncio.create_task(_load(config, service, names, repository, bars), name="loading")
    try:
        await asyncio.wait({server, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loaded = loading.result()
            _freeze_garbage()
            ports = Ports(http=port_of(sock), grpc=listeners.grpc_port, metrics=listeners.metrics_port)
            announce(config, loaded, repository, model=names[0] if names else "", ports=ports, start_s=time.monotonic() - started)
            if loaded is not None and not await _outlives_engine(server, loaded):
                logger.error("the engine can't be started again: the server ends")
                return ENGINE_LOST
        return await server
    finally:
        for task in (loading, server):
            task.cancel()
        await asyncio.gather(loading, server, return_exceptions=True)
        await listeners.close()
        if repository is not None:
            await repository.close()
        await service.close()


def serves_model(config: ServerConfig) -> bool:
    """Whether a model is served under a name of its own: the one that was named, or the packaged one where there is no repository."""
    return bool(config.engine.model.model) or not config.repository.model_repository


async def _outlives_engine(server: asyncio.Task[int], loaded: Loaded) -> bool:
    """Waits for the server's end, or for that of an engine that can't be restarted: a server that can only say 503 should be seen to be gone."""
    given_up = asyncio.Event()
    loaded.engine.on_give_up = given_up.set
    waiting = asyncio.create_task(given_up.wait(), name="engine-given-up")
    try:
        await asyncio.wait({server, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return server.done()
    finally:
        waiting.cancel()


def _registry(http: HttpConfig) -> Registry:
    registry = Registry()
    registry.names = http.metrics_names
    dropped = registry.counter(LOG_LINES_DROPPED)

    def refresh() -> None:
        dropped.inc(log.dropped_lines() - dropped.value)

    registry.refreshers.append(refresh)
    return registry


def service_limits(http: HttpConfig) -> ServiceLimits:
    """What the service is to hold requests to."""
    return ServiceLimits(
        max_queued=http.max_queued_requests,
        max_concurrent=http.max_concurrent_requests,
        is_fair=bool(http.fairness_header),
        queue_timeout_s=http.queue_timeout_s,
        ignores_unknown_names=http.ignore_unknown_models,
        request_timeout_s=http.request_timeout_s,
        probe_timeout_s=http.probe_timeout_s,
    )


async def _load(
    config: ServerConfig, service: InferenceService, names: tuple[str, ...], repository: ModelRepository | None, bars: ModelBars
) -> Loaded | None:
    """Load the model into the service, then the repository's."""
    loaded = None
    if names:
        with Steps() as steps:
            loaded = await load_backend(config.engine, name=names[0], registry=service.registry, steps=steps)
        service.manager.set_ready(names[0], loaded.backend)
    if repository is not None:
        if loaded is not None:
            adopt(repository, names[0], loaded.backend)
        with bars:
            await repository.start()
    return loaded


def _freeze_garbage() -> None:
    """What start-up made lives for good: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()

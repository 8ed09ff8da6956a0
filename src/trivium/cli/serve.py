"""`trivium serve [MODEL]`: the port first, then the model, then a block that says how to use it."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from typing import Any, Final

import click
import uvloop

from trivium import env, log
from trivium.cli.loading import Loaded, check_model, load_backend, served_names
from trivium.cli.options import CONTEXT, SettingsCommand, resolve_options, setting_options
from trivium.cli.ready import OPEN_WARNING, facts, is_open, ready_block
from trivium.cli.terminal import Steps
from trivium.cli.vllm_flags import check_foreign, foreign_options
from trivium.config import ServerConfig
from trivium.errors import ConfigError
from trivium.frontends.app import create_app
from trivium.frontends.server import bind, port_of, serve
from trivium.metrics.catalogue import LOG_LINES_DROPPED
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
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

    Every flag is also a TRIVIUM_* variable and a line of a --config file; `trivium config show --origin` tells which one counts.
    """
    check_foreign(options)
    if model_argument and options["model"] not in (None, model_argument):
        raise ConfigError(f"Two models were named: {model_argument} and --model {options['model']}.", param="model")
    config = resolve_options(ServerConfig, options, model=model_argument or options["model"]).config
    log.setup()
    log.register_secrets([*config.http.api_key, env.get("HF_TOKEN") or ""])
    check_model(config.engine.model)
    sock = bind(config.http)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, sock))


async def run(config: ServerConfig, sock: socket.socket) -> int:
    """Listen at once (readiness false, requests answered with 503) and load meanwhile. Returns the exit code.

    Raises what the model failed to load with.
    """
    started = time.monotonic()
    manager = ModelManager()
    names = served_names(config.engine.model)
    manager.expect(names)
    service = InferenceService(manager, limits=_limits(config), registry=_registry())
    server = asyncio.create_task(serve(create_app(service, config.http), config.http, sock=sock), name="http")
    loading = asyncio.create_task(_load(config, service, names[0]), name="loading")
    try:
        await asyncio.wait({server, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loaded = loading.result()
            _freeze_garbage()
            _announce(config, loaded, model=names[0], port=port_of(sock), start_s=time.monotonic() - started)
            if not await _outlives_engine(server, loaded):
                logger.error("the engine can't be started again: the server ends")
                return ENGINE_LOST
        return await server
    finally:
        for task in (loading, server):
            task.cancel()
        await asyncio.gather(loading, server, return_exceptions=True)
        await service.close()


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


def _registry() -> Registry:
    registry = Registry()
    dropped = registry.counter(LOG_LINES_DROPPED)

    def refresh() -> None:
        dropped.inc(log.dropped_lines() - dropped.value)

    registry.refreshers.append(refresh)
    return registry


def _limits(config: ServerConfig) -> ServiceLimits:
    http = config.http
    return ServiceLimits(max_queued=http.max_queued_requests, request_timeout_s=http.request_timeout_s, probe_timeout_s=http.probe_timeout_s)


async def _load(config: ServerConfig, service: InferenceService, name: str) -> Loaded:
    """Load the model into the service."""
    with Steps() as steps:
        loaded = await load_backend(config.engine, name=name, registry=service.registry, steps=steps)
    service.manager.set_ready(name, loaded.backend)
    return loaded


def _announce(config: ServerConfig, loaded: Loaded, *, model: str, port: int, start_s: float) -> None:
    """To people as a block on standard output; where logs are JSON, as log records."""
    if log.is_json():
        for name, text in facts(loaded.ready, model=model):
            logger.info("%s", f"{name}: {text}" if name else text)
        if is_open(config):
            logger.warning(OPEN_WARNING)
    else:
        block = ready_block(config, loaded.ready, model=model, port=port, has_chat=loaded.has_chat, start_s=start_s)
        click.echo(f"\n{block}\n")
    logger.info("ready", extra={"model": model, "port": port, "duration_s": round(start_s, 3)})


def _freeze_garbage() -> None:
    """What start-up made lives for good: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()

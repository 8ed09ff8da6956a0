"""How a server says that it can answer: to people as a block on standard output, as log records where logs are JSON."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import click

from trivium import __version__, log
from trivium.backends.llm_load import Loaded
from trivium.cli.ready import OPEN_WARNING, base_url, facts, is_open, ready_block
from trivium.config import ServerConfig
from trivium.repository.repository import ModelRepository

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the server listens; None: not at all."""

    http: int
    grpc: int | None = None
    metrics: int | None = None


def announce(config: ServerConfig, loaded: Loaded | None, repository: ModelRepository | None, *, model: str, ports: Ports, start_s: float) -> None:
    """`loaded`: the model served under a name of its own, `model`."""
    port = ports.http
    if log.is_json():
        for name, text in facts(loaded.ready, model=model) if loaded is not None else ():
            logger.info("%s", f"{name}: {text}" if name else text)
        for warning in warnings_about(config):
            logger.warning("%s", warning)
    else:
        blocks: list[str] = []
        if loaded is not None:
            blocks.append(ready_block(config, loaded.ready, model=model, port=port, has_chat=loaded.has_chat, start_s=start_s))
        if repository is not None:
            blocks.append(repository_block(config, repository, ports=ports, start_s=start_s, has_heading=loaded is None))
        click.echo("\n" + "\n\n".join(blocks) + "\n")
    logger.info("ready", extra={"model": ", ".join(ready_models(repository, model)), "port": port, "duration_s": round(start_s, 3)})


def ready_models(repository: ModelRepository | None, model: str) -> list[str]:
    """Names of everything that answers: the model with a name of its own first."""
    own = [model] if model else []
    return list(dict.fromkeys([*own, *(line.name for line in repository.index(ready_only=True))])) if repository is not None else own


def warnings_about(config: ServerConfig) -> list[str]:
    """What anybody who reaches this server may do, where nothing stops them."""
    if not is_open(config):
        return []
    if config.repository.model_control_mode != "explicit":
        return [OPEN_WARNING]
    runs_code = ", and run code with them (allow_python_models)" if config.repository.allow_python_models else ""
    return [OPEN_WARNING, f"anybody who reaches this server may load models{runs_code}: set --api-key or --host 127.0.0.1"]


def repository_block(config: ServerConfig, repository: ModelRepository, *, ports: Ports, start_s: float, has_heading: bool) -> str:
    """Which models answer. Why others don't, the log has told."""
    url = base_url(config.http.host, ports.http)
    lines = repository.index(ready_only=False)
    wanted = [line for line in lines if line.state]
    width = max((len(line.name) for line in wanted), default=0) + 2
    table = [f"  {line.name:<{width}}{line.version or '-':<5}{line.state}" for line in wanted]
    models = [*table, *([] if wanted else ["  no models are loaded"])]
    if any(line.reason for line in wanted):
        models += ["", "  Why a model can't be served: above, or `trivium models list`."]
    if not has_heading:
        return "\n".join(["Models of the repository:", "", *models])
    heading = [f"Trivium {__version__} is ready after {start_s:.1f} s: {url}", *(f"  {warning}" for warning in warnings_about(config)), ""]
    routes = [f"  {name:<12}{url}{path}" for name, path in (("KServe v2", "/v2"), ("API", "/v1"), ("docs", "/docs"), ("metrics", "/metrics"))]
    if ports.grpc is not None:
        routes.insert(1, f"  {'gRPC':<12}{base_url(config.http.host, ports.grpc).removeprefix('http://')}")
    return "\n".join([*heading, *routes, "", *models])

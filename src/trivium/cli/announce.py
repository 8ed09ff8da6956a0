"""How a server says that it can answer: to people as a block on standard output, as log records where logs are JSON."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
from dataclasses import dataclass

import click

from trivium import __version__, log
from trivium.backends.llm_load import Loaded
from trivium.cli.one_line import first_line
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
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
            blocks.append(repository_block(config, repository, ports=ports, start_s=start_s, has_heading=loaded is None, columns=columns))
        click.echo("\n" + "\n\n".join(blocks) + "\n")
    ready = {line.name: line.version for line in repository.index(ready_only=True)} if repository is not None else {}
    logger.info("ready", extra={"model": model or ", ".join(ready), "port": port, "duration_s": round(start_s, 3)})


def warnings_about(config: ServerConfig) -> list[str]:
    """What anybody who reaches this server may do, where nothing stops them."""
    if not is_open(config):
        return []
    if config.repository.model_control_mode != "explicit":
        return [OPEN_WARNING]
    runs_code = ", and run code with them (allow_python_models)" if config.repository.allow_python_models else ""
    return [OPEN_WARNING, f"anybody who reaches this server may load models{runs_code}: set --api-key or --host 127.0.0.1"]


def repository_block(config: ServerConfig, repository: ModelRepository, *, ports: Ports, start_s: float, has_heading: bool, columns: int = 0) -> str:
    """Which models answer, and why others don't, in lines of at most `columns` characters; 0: of any length."""
    url = base_url(config.http.host, ports.http)
    lines = repository.index(ready_only=False)
    wanted = [line for line in lines if line.state]
    width = max((len(line.name) for line in wanted), default=0) + 2
    table = [_row(f"  {line.name:<{width}}{line.version or '-':<5}{line.state}", line.reason, columns) for line in wanted]
    models = [*table, *([] if wanted else ["  no models are loaded"])]
    if not has_heading:
        return "\n".join(["Models of the repository:", "", *models])
    heading = [f"Trivium {__version__} is ready after {start_s:.1f} s: {url}", *(f"  {warning}" for warning in warnings_about(config)), ""]
    routes = [f"  {name:<12}{url}{path}" for name, path in (("KServe v2", "/v2"), ("API", "/v1"), ("docs", "/docs"), ("metrics", "/metrics"))]
    if ports.grpc is not None:
        routes.insert(1, f"  {'gRPC':<12}{base_url(config.http.host, ports.grpc).removeprefix('http://')}")
    return "\n".join([*heading, *routes, "", *models])


def _row(row: str, reason: str, columns: int) -> str:
    """The reason beside the rest where it fits, else below it, broken between words."""
    first = first_line(reason)
    whole = f"{row}  {first}".rstrip()
    if not columns or len(whole) <= columns:
        return whole
    indent = " " * 6
    return f"{row}\n{textwrap.fill(first, columns, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)}"

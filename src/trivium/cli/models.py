"""`trivium models`: what a server serves, loading and unloading, and a check of a repository without a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import click

from trivium.cli.server_api import ServerApi
from trivium.errors import ConfigError, InvalidRequest, ModelLoadError, ModelNotFound, NotReady
from trivium.protocol.config_json import config_to_json
from trivium.repository.check import ModelCheck, check_repository
from trivium.repository.config_text import BadModelConfig, read_config
from trivium.repository.devices import visible_gpus
from trivium.repository.layout import check_repositories, is_model
from trivium.repository.plan import PlanOptions

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}
HAS_PROBLEMS: Final = 1
CONTROL_IS_OFF: Final = "explicit model load / unload is not allowed"
"""What a server's refusal begins with, Triton's as ours."""

Command = Callable[..., Any]


@click.group(name="models", context_settings=CONTEXT)
def command() -> None:
    """The models of a running server, and checks of a model repository."""


def _server_options(function: Command) -> Command:
    function = click.option("--api-key", default=None, help="Key of the server, where it wants one.")(function)
    return click.option("--url", default="http://localhost:8000", show_default=True, help="The server.")(function)


@command.command(name="list")
@_server_options
@click.option("--ready", is_flag=True, help="Only what is ready.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_models(*, url: str, api_key: str | None, ready: bool, as_json: bool) -> None:
    """Every model and version, its state, and why it isn't ready."""
    lines = _index(ServerApi(url, api_key=api_key), ready=ready)
    if as_json:
        click.echo(json.dumps(lines, indent=2))
        return
    rows = [(line["name"], line.get("version", ""), line.get("state", ""), _first_line(line.get("reason", ""))) for line in lines]
    click.echo(_table([("MODEL", "VERSION", "STATE", "REASON"), *rows]))


@command.command()
@click.argument("model")
@click.option("--version", default="", help="Default: the highest that is ready.")
@_server_options
def show(*, model: str, version: str, url: str, api_key: str | None) -> None:
    """What MODEL takes and gives, and its complete configuration, as JSON."""
    server = ServerApi(url, api_key=api_key)
    path = _path(model, version)
    click.echo(json.dumps({"metadata": server.call("GET", path), "config": server.call("GET", f"{path}/config")}, indent=2))


@command.command()
@click.argument("model")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A config.pbtxt, or JSON, instead of the one in the repository.")
@click.option("--file", "files", multiple=True, metavar="VERSION/NAME=PATH", help="A file of the model, instead of its folder; may be repeated.")
@_server_options
def load(*, model: str, config: Path | None, files: Sequence[str], url: str, api_key: str | None) -> None:
    """Load MODEL, or load it again if it changed on disk; requests in flight and to come are answered meanwhile."""
    parameters: dict[str, str] = {}
    if config is not None:
        parameters["config"] = _config_as_json(config)
    for entry in files:
        name, equals, path = entry.partition("=")
        if not equals:
            raise ConfigError(f"--file must be VERSION/NAME=PATH, got {entry!r}", param="file")
        parameters[f"file:{name}"] = base64.b64encode(_read(Path(path))).decode()
    _control(ServerApi(url, api_key=api_key), model, "load", parameters)
    click.echo(f"{model} is loaded", err=True)


@command.command()
@click.argument("model")
@click.option("--dependents", is_flag=True, help="Of an ensemble: also the parts that nothing else uses.")
@_server_options
def unload(*, model: str, dependents: bool, url: str, api_key: str | None) -> None:
    """Refuse new requests to MODEL and free it when those in flight are answered."""
    server = ServerApi(url, api_key=api_key)
    # To unload a model that isn't there is no error to a server: it has nothing to do.
    states = [line.get("state", "") for line in _index(server) if line["name"] == model]
    if not states:
        raise ModelNotFound(f"there is no model '{model}' in the repository of {url}", param="model")
    _control(server, model, "unload", {"unload_dependents": dependents})
    is_loaded = any(state not in ("", "UNAVAILABLE") for state in states)
    click.echo(f"{model} is being unloaded" if is_loaded else f"{model} wasn't loaded", err=True)


@command.command()
@click.argument("repositories", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--model-config-name", default="", help="As for serve: take each model's configs/<name>.pbtxt where there is one.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(*, repositories: Sequence[Path], model_config_name: str, as_json: bool) -> int:
    """Check model repositories without serving them: configurations, files, ensembles. Exit code 1 if anything is wrong or there is no model."""
    check_repositories(repositories)
    checks = check_repository(repositories, PlanOptions(config_name=model_config_name, gpus=visible_gpus()))
    if as_json:
        click.echo(json.dumps([_as_json(found) for found in checks], indent=2))
    else:
        click.echo(_report(checks))
    if checks and not any(found.problems for found in checks):
        return 0
    for path in filter(is_model, repositories):
        click.echo(f"{path} looks like the folder of a model, not like a repository: check {path.resolve().parent}", err=True)
    return HAS_PROBLEMS


def _first_line(reason: str) -> str:
    """What went wrong, without where."""
    return reason.strip().split("\n", 1)[0].removesuffix(";")


def _index(server: ServerApi, *, ready: bool = False) -> list[dict[str, str]]:
    return cast("list[dict[str, str]]", server.call("POST", "/v2/repository/index", {"ready": ready}))


def _control(server: ServerApi, model: str, action: str, parameters: Mapping[str, object]) -> None:
    """Load or unload. Raises `ModelLoadError` where the server won't: the command line was right, so its exit code isn't that of a wrong one."""
    try:
        server.call("POST", f"/v2/repository/models/{quote(model, safe='')}/{action}", {"parameters": parameters})
    except InvalidRequest as error:
        raise ModelLoadError(error.message) from None
    except NotReady as error:
        if CONTROL_IS_OFF not in error.message:
            raise
        raise ModelLoadError(f"{error.message} (start the server with --model-control-mode explicit)") from None


def _report(checks: Sequence[ModelCheck]) -> str:
    rows = [(found.name, found.backend, ", ".join(map(str, found.versions)), "wrong" if found.problems else "ok") for found in checks]
    problems = [problem for found in checks for problem in found.problems]
    table = _table([("MODEL", "BACKEND", "VERSIONS", ""), *rows]) if rows else "no models: a folder of the repository is a model"
    return "\n".join([table, *([""] if problems else []), *problems])


def _as_json(found: ModelCheck) -> Mapping[str, object]:
    return {"name": found.name, "backend": found.backend, "versions": list(found.versions), "problems": list(found.problems)}


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _config_as_json(path: Path) -> str:
    if path.suffix == ".json":
        return _read(path).decode("utf-8", "replace")
    try:
        return config_to_json(read_config(path, str(path)).config)
    except BadModelConfig as error:
        raise ConfigError(error.message, param="config") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None

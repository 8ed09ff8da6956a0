"""`trivium cache ls | rm`: what has been downloaded."""

from __future__ import annotations

import json
import time

import click

from trivium.cli.terminal import format_bytes
from trivium.sources.model_cache import CachedModel, cached_models, remove_cached

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(name="cache", context_settings=CONTEXT)
def command() -> None:
    """Models that were downloaded from a hub or a URL."""


@command.command(name="ls", context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_command(*, as_json: bool) -> None:
    """Name, size and last use of each, on standard output."""
    models = cached_models()
    if as_json:
        click.echo(json.dumps([_fields(model) for model in models], indent=2))
        return
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        used = time.strftime("%Y-%m-%d", time.localtime(model.last_used))
        click.echo(f"{model.name:<{width}}  {format_bytes(model.num_bytes):>10}  {used}  {model.kind}")
    click.echo(f"{len(models)} model(s), {format_bytes(sum(model.num_bytes for model in models))}", err=True)


@command.command(name="rm", context_settings=CONTEXT)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove_command(*, names: tuple[str, ...]) -> None:
    """Remove models, by the names that `ls` shows. A server that runs one goes on."""
    for name in names:
        model = remove_cached(name)
        click.echo(f"{model.name}: {format_bytes(model.num_bytes)} freed", err=True)


def _fields(model: CachedModel) -> dict[str, str | int | float]:
    return {"name": model.name, "kind": model.kind, "path": str(model.path), "bytes": model.num_bytes, "last_used": model.last_used}

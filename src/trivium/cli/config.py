"""`trivium config show | check | schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trivium import env, log
from trivium.cli.options import CONTEXT, SettingsCommand, resolve_options, setting_options
from trivium.config import ServerConfig
from trivium.config_io import Resolved, json_schema, resolve, settings_of


@click.group(name="config", context_settings=CONTEXT)
def command() -> None:
    """Show, check or describe settings. Precedence: flag, TRIVIUM_* variable, --config file, default."""


def _shown(resolved: Resolved[ServerConfig]) -> dict[str, Any]:
    """Values fit for the eye: secrets are only said to be set."""
    values = {name: resolved.value(name) for name in settings_of(ServerConfig)}
    return {name: "***" if setting.is_secret and values[name] else values[name] for name, setting in settings_of(ServerConfig).items()}


@command.command(cls=SettingsCommand, context_settings=CONTEXT)
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@setting_options(ServerConfig)
def show(*, origin: bool, as_json: bool, **options: Any) -> None:
    """The settings that `trivium serve` would run with, given the same flags."""
    resolved = resolve_options(ServerConfig, options)
    values = _shown(resolved)
    if as_json:
        entries = {name: {"value": value, "origin": resolved.origins[name]} for name, value in values.items()} if origin else values
        click.echo(json.dumps(entries, indent=2))
        return
    width = max(len(name) for name in values)
    for name, value in values.items():
        line = f"{name:<{width}}  {json.dumps(value, ensure_ascii=False)}"
        click.echo(f"{line:<{width + 30}}  {resolved.origins[name]}" if origin else line)


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Read FILE together with the TRIVIUM_* variables; say what is wrong with the first wrong setting."""
    log.check_environment()
    resolved = resolve(ServerConfig, variables=env.settings(), file=file)
    num_set = sum(origin.startswith(f"{file}:") for origin in resolved.origins.values())
    click.echo(f"{file}: {num_set} settings, all valid")


@command.command()
def schema() -> None:
    """JSON Schema of a config file, for editors."""
    click.echo(json.dumps(json_schema(ServerConfig), indent=2))

"""`trivium pull NAME`: have a model's files here, and say where."""

from __future__ import annotations

import json

import click

from trivium.cli.terminal import format_bytes
from trivium.sources import ModelFiles, resolve


def weight_bytes(files: ModelFiles) -> int:
    return sum(path.stat().st_size for path in files.weight_files)


@click.command(name="pull", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, model: str, revision: str | None, as_json: bool) -> None:
    """Download MODEL from the hub into the local cache; what is there already is not fetched again.

    Prints the path on standard output. Without MODEL: where the packaged model is.
    """
    files = resolve(model, revision)
    size = weight_bytes(files)
    if as_json:
        click.echo(json.dumps({"name": files.name, "kind": files.kind, "path": str(files.path), "weight_bytes": size}))
        return
    click.echo(f"{files.name}: {format_bytes(size)} of weights in {len(files.weight_files)} file(s)", err=True)
    click.echo(str(files.path))

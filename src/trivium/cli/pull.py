"""`trivium pull NAME`: have a model's files here, and say where."""

from __future__ import annotations

import json

import click

from trivium.cli.hub_option import hub_option
from trivium.cli.terminal import Steps, format_bytes
from trivium.sources import ModelFiles, resolve


def weight_bytes(files: ModelFiles) -> int:
    return sum(path.stat().st_size for path in files.weight_files)


@click.command(name="pull", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@hub_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, model: str, revision: str | None, hub: str, as_json: bool) -> None:
    """Download MODEL, a hub name or a URL (s3, oss, gs, http, https), into the local cache; what is there already is not fetched again,
    and a download that was cut is taken up where it was.

    HF_ENDPOINT names a mirror of the hub. Prints the path on standard output. Without MODEL: where the packaged model is.
    """
    with Steps() as steps:
        files = resolve(model, revision, hub=hub, progress=steps.update)
    size = weight_bytes(files)
    if as_json:
        click.echo(json.dumps({"name": files.name, "kind": files.kind, "path": str(files.path), "weight_bytes": size}))
        return
    click.echo(f"{files.name}: {format_bytes(size)} of weights in {len(files.weight_files)} file(s)", err=True)
    click.echo(str(files.path))

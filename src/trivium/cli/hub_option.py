"""`--hub` of the commands that take a model by name but no other settings."""

from __future__ import annotations

import click

hub_option = click.option(
    "--hub", type=click.Choice(["huggingface", "modelscope"]), default="huggingface", envvar="TRIVIUM_HUB", help="Whose names hub names are."
)

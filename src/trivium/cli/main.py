"""The command group, and how every command ends.

Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong, 3 a server that was asked is not ready, 130 interrupted.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from trivium import __version__, log
from trivium.errors import ConfigError, InvalidRequest, NotReady, TriviumError

FAILED: Final = 1
USAGE: Final = 2
NOT_READY: Final = 3
INTERRUPTED: Final = 130

COMMANDS: Final = {
    "serve": ("trivium.cli.serve", "Serve a language model, a repository of models of any kind, or both."),
    "launcher": ("trivium.cli.launcher", "Serve a model with text-generation-launcher's flags."),
    "chat": ("trivium.cli.chat", "Talk to a model in the terminal, or pipe a prompt through it."),
    "run": ("trivium.cli.chat", "Another name for chat."),
    "pull": ("trivium.cli.pull", "Download a model, or say where it already is."),
    "cache": ("trivium.cli.cache", "What has been downloaded: list it, remove it."),
    "quantize": ("trivium.cli.quantize", "Make a checkpoint of 4 or 8 bits."),
    "show": ("trivium.cli.show", "What a model is and what it needs, without loading it."),
    "models": ("trivium.cli.models", "Models of a running server: list, show, load, unload; check a repository."),
    "init": ("trivium.cli.init", "Lay out a model repository for a model file."),
    "config": ("trivium.cli.config", "Show, check or describe settings."),
    "doctor": ("trivium.cli.doctor", "Versions, devices and which fast paths are on."),
}
"""Name to the module whose `command` it is, and the help line. A module is imported when its command runs."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean {nearest[0]}?" if nearest else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="trivium %(version)s")
def cli() -> None:
    """Trivium: one server for language models and models of any other kind, over the APIs of OpenAI, TGI and Triton (KServe).

    Start with `trivium serve`, or `trivium chat`: without a model both take the packaged one.
    """


def exit_code(error: TriviumError) -> int:
    if isinstance(error, NotReady):
        return NOT_READY
    return USAGE if isinstance(error, ConfigError | InvalidRequest) else FAILED


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Mistakes and failures we know are one line on standard error, never a traceback."""
    try:
        result: object = cli.main(args=list(args) if args is not None else None, prog_name="trivium", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        return _complain(_usage_message(error), USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), FAILED)
    except TriviumError as error:
        return _complain(error.message, exit_code(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`trivium … | head`); keep the interpreter's last flush from failing too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return result if isinstance(result, int) else 0


def _usage_message(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx is not None else "trivium"
    if isinstance(error, click.NoSuchOption):
        nearest = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.6)
        message = f"There is no flag {error.option_name}" + (f"; did you mean {nearest[0]}?" if nearest else ".")
    else:
        message = " ".join(error.format_message().split())
    return f"{message} (see {where} --help)"


def _complain(message: str, code: int) -> int:
    click.echo(f"error: {log.escape(log.redact(log.one_line(message)))}", err=True)
    return code

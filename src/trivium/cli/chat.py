"""`trivium chat` (and `run`): talk to a model, or pipe one prompt through it."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click

from trivium import log
from trivium.cli.conversation import SAMPLING, Conversation, parse_sampling, talk
from trivium.cli.options import CONTEXT, SettingsCommand, resolve_options, setting_options
from trivium.cli.remote import RemoteTalker, Talker
from trivium.config import EngineConfig
from trivium.errors import ConfigError
from trivium.sources import packaged

OFFERED = ("temperature", "top_p", "top_k", "max_tokens", "seed", "repetition_penalty")
"""Sampling parameters with a flag; `/set` knows more."""

MAX_TOKENS: Final = 512
"""Where nothing else is said, so that a small model that repeats itself comes to an end."""

_MODEL_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


_SAMPLING_HELP: Final = {
    "max_tokens": f"Longest answer in tokens [default: {MAX_TOKENS}].",
    "temperature": "0: always the likeliest token [default: the model's own; the packaged model's: 0].",
    "seed": "Seed of this conversation's random numbers.",
}


def _sampling_options(function: Any) -> Any:
    for name in reversed(OFFERED):
        flag = "--sampling-seed" if name == "seed" else "--" + name.replace("_", "-")
        text = _SAMPLING_HELP.get(name, f"Sampling parameter {name}.")
        function = click.option(f"sampling_{name}", flag, metavar=SAMPLING[name].__name__, help=text)(function)
    return function


@click.command(name="chat", cls=SettingsCommand, context_settings=CONTEXT)
@click.argument("model", default="")
@click.argument("prompt", default="")
@click.option("-p", "--prompt", "prompt_option", metavar="TEXT", help="The same as PROMPT, where no MODEL is named.")
@click.option("--url", help="Talk to the server at URL instead of starting an engine.")
@click.option("--api-key", "--key", "key", metavar="KEY", help="Key of the server at --url, where it wants one.")
@click.option("--system", metavar="TEXT", help="System message.")
@_sampling_options
@setting_options(EngineConfig, leave_out=("model",))
def command(*, model: str, prompt: str, prompt_option: str | None, url: str | None, key: str | None, system: str | None, **options: Any) -> None:
    """Talk to MODEL (default: the packaged one, or the server's first); /help lists what can be said besides.

    With PROMPT, or when standard input is no terminal: one answer on standard output, nothing else.
    """
    sampling = {name: parse_sampling(name, text) for name in OFFERED if (text := options.pop(f"sampling_{name}")) is not None}
    if prompt and prompt_option is not None:
        raise ConfigError("PROMPT and --prompt were both given.", param="prompt")
    if url is None and not (prompt or prompt_option):
        _check_model_name(model)
    question = _question(prompt_option or prompt)
    if question == "":
        raise ConfigError("standard input is empty: nothing to answer")
    talker = _talker(model, url, key, options)
    try:
        conversation = Conversation(talker, system=system, sampling={**_defaults(talker.model), **sampling}, out=sys.stdout)
        if question is not None:
            conversation.say(question)
            return
        click.echo(f"{log.escape(talker.model)}. /help lists commands, Ctrl-D leaves.", err=True)
        _with_line_editing()
        talk(conversation, read=_read, warn=lambda text: click.echo(text, err=True))
    finally:
        talker.close()


def _defaults(model: str) -> dict[str, Any]:
    """What is sampled with unless flags say otherwise. The packaged model is too small to be right at its own temperature."""
    return {"max_tokens": MAX_TOKENS} | ({"temperature": 0.0} if model == packaged.NAME else {})


def _check_model_name(model: str) -> None:
    """Raises `ConfigError` for a lone argument that is rather a prompt."""
    if model and not _MODEL_NAME.fullmatch(model) and not model.startswith((".", "/", "~")) and not Path(model).exists():
        raise ConfigError(f"{model!r} is no folder, file or hub name. To ask the packaged model: trivium run -p {shlex.quote(model)}", param="model")


def _read(prompt: str) -> str:
    try:
        return input(prompt)
    except EOFError:
        # The shell's prompt should not end up behind ours.
        click.echo(err=True)
        raise


def _question(prompt: str) -> str | None:
    """The one prompt to answer: PROMPT, standard input, or both; None for a conversation."""
    if sys.stdin is None or sys.stdin.isatty():
        return prompt or None
    return "\n\n".join(part for part in (prompt, sys.stdin.read().strip()) if part)


def _talker(model: str, url: str | None, key: str | None, options: dict[str, Any]) -> Talker:
    if url is not None:
        given = [name for name, value in options.items() if value not in (None, ())]
        if given:
            raise ConfigError(f"{', '.join(given)}: engine settings have no effect with --url", param=given[0])
        return RemoteTalker(url, model=model, api_key=key)
    from trivium.cli.local import LocalTalker

    return LocalTalker(resolve_options(EngineConfig, options, model=model or None).config)


def _with_line_editing() -> None:
    """Arrow keys and history for `input`, where Python has readline."""
    try:
        importlib.import_module("readline")
    except ImportError:
        return

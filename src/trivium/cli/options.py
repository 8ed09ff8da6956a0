"""Command-line flags made from the config dataclasses: one option for each setting, in groups, with vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_origin

import click

from trivium import env, log
from trivium.cli import triton_flags
from trivium.config import ServerConfig
from trivium.config_io import Resolved, Setting, resolve, settings_of

T = TypeVar("T")
Command = Callable[..., Any]

SHORT: Final = {"quantization": "-q", "tensor_parallel_size": "-tp"}
"""vLLM's short flags."""


def _normalize(name: str) -> str:
    """Flags may be written with underscores, as vLLM's may."""
    return name.replace("_", "-")


CONTEXT: Final = {"token_normalize_func": _normalize, "help_option_names": ["-h", "--help"], "max_content_width": 110}
"""`context_settings` of every command that takes settings."""


class SettingOption(click.Option):
    """An option that hands on text; `config_io` parses it, so that flags, variables and files agree."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        names = [setting.name, setting.flag]
        if setting.annotation is bool:
            names[1] += f"/--no-{setting.flag.removeprefix('--')}"
        elif setting.name in SHORT:
            names.append(SHORT[setting.name])
        is_bool = setting.annotation is bool
        super().__init__(
            names,
            default=None,
            is_flag=is_bool,
            type=click.BOOL if is_bool else click.STRING,
            multiple=get_origin(setting.annotation) is tuple,
            help=_help(setting),
            metavar=None if is_bool else setting.type_name.replace(" ", ""),
        )


def _help(setting: Setting) -> str:
    if setting.default in (None, "", (), {}) or setting.default is False:
        return setting.doc
    return f"{setting.doc} [default: {'on' if setting.default is True else setting.default}]"


class SettingsCommand(click.Command):
    """A command whose help shows its settings under the heading of the dataclass each is in. Triton's flags are understood."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = [option for option in self.params if isinstance(option, click.Option) and option.is_flag]
        booleans = {name for option in flags for name in (*option.opts, *option.secondary_opts) if name.startswith("--")}
        return super().parse_args(ctx, triton_flags.translate(args, booleans))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = parameter.setting.section.rstrip(".") if isinstance(parameter, SettingOption) else "Options"
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def setting_options(root: type, *, leave_out: Iterable[str] = ()) -> Callable[[Command], Command]:
    """Decorator: `--config FILE` and one flag for each setting of `root`. The function gets them all as keyword arguments."""
    skipped = set(leave_out)

    def decorate(function: Command) -> Command:
        file = click.Path(dir_okay=False, path_type=Path)
        options: list[click.Option] = [click.Option(["config_file", "--config"], type=file, metavar="FILE", help="YAML file of settings.")]
        options += [SettingOption(setting) for name, setting in settings_of(root).items() if name not in skipped]
        known: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
        known.extend(reversed(options))
        return function

    return decorate


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def resolve_options(root: type[T], options: dict[str, Any], **extra: str | None) -> Resolved[T]:
    """The config from a command's keyword arguments, `TRIVIUM_*` and the file. `extra` are settings given in another way, such as MODEL."""
    log.check_environment()
    given: dict[str, Any] = {name: value for name, value in {**options, **extra}.items() if value not in (None, ())}
    file = given.pop("config_file", None)
    return resolve(root, flags={name: _as_text(value) for name, value in given.items()}, variables=env.settings(), file=file, within=ServerConfig)

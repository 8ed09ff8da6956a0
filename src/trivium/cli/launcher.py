"""`trivium launcher`: text-generation-launcher's command line and environment, as they are."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import click
import uvloop

from trivium import env, log
from trivium.cli.loading import check_model
from trivium.cli.options import CONTEXT, SettingOption
from trivium.cli.serve import run
from trivium.cli.tgi_flags import BY_NAME, DEFAULTS, FLAGS, HUB_VARIABLES, VARIABLES, TgiFlag, Translation, translate
from trivium.config import CacheConfig, ServerConfig
from trivium.config_io import Resolved, resolve, settings_of
from trivium.errors import ConfigError
from trivium.frontends.server import bind
from trivium.sources import packaged

logger = logging.getLogger(__name__)

OWN: Final = ("served_model_name", "hub", "device", "num_threads", "max_queued_requests", "queue_timeout_s", "fairness_header", "metrics_names")
"""Settings of Trivium's that the launcher takes as flags too; all of them may be given as TRIVIUM_* variables."""
LOG_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}
"""TGI's LOG_LEVEL; its finer directives (`module=level`) are left alone."""
ALIAS: Final = "tgi"
"""The name by which TGI's clients ask for the model of /v1/chat/completions."""


def _option(flag: TgiFlag) -> click.Option:
    """Options hand on text, so that flags and variables are read alike."""
    names = [f"tgi_{flag.name}", flag.flag, *([flag.short] if flag.short else [])]
    if flag.is_bool:
        return click.Option(names, is_flag=False, flag_value="true", default=None, help=flag.help, metavar="[true|false]")
    return click.Option(names, default=None, multiple=flag.is_multiple, help=flag.help, metavar="TEXT")


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    own = [SettingOption(setting) for name, setting in settings_of(ServerConfig).items() if name in OWN]
    function.__dict__.setdefault("__click_params__", []).extend(reversed([*map(_option, FLAGS), *own]))
    return function


@click.command(name="launcher", context_settings=CONTEXT)
@_options
def command(**options: Any) -> int:
    """Serve a model with text-generation-launcher's flags and variables (MODEL_ID, NUM_SHARD, …).

    What a flag asks for and Trivium can't do is refused by name. All settings of `trivium serve` may be given as TRIVIUM_* variables.
    """
    meaning = translate(_given(options), num_visible=num_visible_gpus, block_size=CacheConfig().block_size)
    _set_environment(meaning)
    log.check_environment()
    own = {name: _text(options[name]) for name in OWN if options[name] not in (None, ())}
    config = resolve_launcher(meaning, own).config
    log.setup()
    log.register_secrets([*config.http.api_key, env.get("HF_TOKEN") or ""])
    for note in meaning.notes:
        logger.warning("%s", note)
    if meaning.wants_report:
        _report()
    check_model(config.engine.model, tensor_parallel_size=config.engine.parallel.tensor_parallel_size)
    sock = bind(config.http)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, sock))


def resolve_launcher(meaning: Translation, own: Mapping[str, str]) -> Resolved[ServerConfig]:
    """Flags and TGI's variables, then TRIVIUM_* variables, then TGI's defaults, then Trivium's. Raises `ConfigError` that names TGI's flag."""
    variables = env.settings()
    named = {setting.name for setting in settings_of(ServerConfig).values() if setting.variable in variables}
    flags = {name: text for name, text in DEFAULTS.items() if name not in named}
    flags |= {setting: value for name, setting in VARIABLES.items() if (value := env.foreign(name)) is not None}
    flags |= {**meaning.settings, **own}
    if "served_model_name" not in {*flags, *named}:
        flags["served_model_name"] = f"{flags.get('model') or packaged.NAME},{ALIAS}"
    try:
        return resolve(ServerConfig, flags=flags, variables=variables)
    except ConfigError as error:
        source = meaning.sources.get(error.param or "")
        if source is None:
            raise
        ours = f"--{(error.param or '').replace('_', '-')}"
        raise ConfigError(error.message.replace(f"flag {ours}", f"flag {source}"), param=error.param) from None


def num_visible_gpus() -> int | None:
    """As CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES say; None where neither is set."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = env.foreign(name)
        if value is None:
            continue
        words = [word.strip() for word in value.split(",") if word.strip()]
        if words == ["all"]:
            return len(list(Path("/dev").glob("nvidia[0-9]*")))
        return 0 if words in (["void"], ["none"]) else len(words)
    return None


def _given(options: Mapping[str, Any]) -> dict[str, str]:
    """Each flag's text, from the command line or else its variable."""
    given: dict[str, str] = {}
    for flag in FLAGS:
        value = options[f"tgi_{flag.name}"]
        if value in (None, ()):
            value = _from_environment(flag)
        if value is not None:
            given[flag.name] = _text(value)
    return given


def _from_environment(flag: TgiFlag) -> str | None:
    if flag is BY_NAME["env"]:
        return None
    value = env.foreign(flag.variable)
    if flag is BY_NAME["hostname"] and value == socket.gethostname():
        return None  # set by the shell or the container, not for us: it would leave localhost unanswered
    return value


def _text(value: Any) -> str:
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def _set_environment(meaning: Translation) -> None:
    """What the hub's library and the log read, for this process and the engine's."""
    for name, others in HUB_VARIABLES.items():
        found = next((value for other in others if (value := env.foreign(other))), None)
        if found is not None and env.get(name) is None:
            env.define(name, found)
    level = LOG_LEVELS.get((env.foreign("LOG_LEVEL") or "").lower())
    if level is not None and env.get("TRIVIUM_LOG_LEVEL") is None:
        env.define("TRIVIUM_LOG_LEVEL", level)
    for name, value in meaning.environment.items():
        env.define(name, value)


def _report() -> None:
    from trivium.cli.doctor import command as doctor

    doctor.main(args=[], standalone_mode=False)

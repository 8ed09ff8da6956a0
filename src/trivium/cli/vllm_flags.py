"""vLLM's flags for which Trivium has no setting: accepted where they ask for what happens anyway, refused by name where they don't."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from trivium.errors import ConfigError


@dataclass(frozen=True)
class ForeignFlag:
    """`accepted` are the values that ask for nothing; for any other, `why` completes "… is refused: "."""

    accepted: tuple[str, ...]
    why: str
    is_bool: bool = False


_LATER: Final = "not supported yet"
_ONE_SERVER: Final = "one engine in one server process is what there is"

FLAGS: Final[Mapping[str, ForeignFlag]] = {
    "api_server_count": ForeignFlag(("1",), _ONE_SERVER),
    "async_scheduling": ForeignFlag(("true",), "use --pipeline-depth 0", is_bool=True),
    "cpu_offload_gb": ForeignFlag(("0",), _LATER),
    "data_parallel_size": ForeignFlag(("1",), _ONE_SERVER),
    "disable_log_requests": ForeignFlag(("true", "false"), "", is_bool=True),
    "disable_log_stats": ForeignFlag(("true", "false"), "", is_bool=True),
    "distributed_executor_backend": ForeignFlag(("auto", "mp", "uni"), _LATER),
    "enable_auto_tool_choice": ForeignFlag(("false",), f"tools are {_LATER}", is_bool=True),
    "enable_chunked_prefill": ForeignFlag(("true",), "chunked prefill can't be turned off", is_bool=True),
    "enable_expert_parallel": ForeignFlag(("false",), _LATER, is_bool=True),
    "enable_lora": ForeignFlag(("false",), f"adapters are {_LATER}", is_bool=True),
    "enable_sleep_mode": ForeignFlag(("false",), _LATER, is_bool=True),
    "lora_modules": ForeignFlag((), f"adapters are {_LATER}"),
    "pipeline_parallel_size": ForeignFlag(("1",), _LATER),
    "reasoning_parser": ForeignFlag(("",), _LATER),
    "response_role": ForeignFlag(("assistant",), _LATER),
    "speculative_config": ForeignFlag(("none",), _LATER),
    "swap_space": ForeignFlag(("0", "4"), "preempted requests are recomputed, never swapped"),
    "task": ForeignFlag(("auto", "generate"), _LATER),
    "tokenizer_mode": ForeignFlag(("auto", "hf"), "each model has one tokenizer, its own"),
    "tool_call_parser": ForeignFlag((), f"tools are {_LATER}"),
}

_PREFIX: Final = "foreign_"


def foreign_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the flags above, hidden from help."""
    for name, flag in FLAGS.items():
        text = "--" + name.replace("_", "-")
        if flag.is_bool:
            option = click.option(f"{_PREFIX}{name}", f"{text}/--no-{text[2:]}", is_flag=True, default=None, hidden=True)
        else:
            option = click.option(f"{_PREFIX}{name}", text, default=None, hidden=True)
        function = option(function)
    return function


def check_foreign(options: dict[str, Any]) -> None:
    """Take the flags above out of `options`. Raises `ConfigError` for one that asks for something."""
    for name, flag in FLAGS.items():
        value = options.pop(f"{_PREFIX}{name}", None)
        text = str(value).lower() if isinstance(value, bool) else value
        if text is not None and text not in flag.accepted:
            given = f"--{'no-' if text == 'false' else ''}{name.replace('_', '-')}" + ("" if flag.is_bool else f" {text}")
            raise ConfigError(f"{given} is refused: {flag.why}.", param=name)

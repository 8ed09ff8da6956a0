"""Engine arguments of the offline face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.config import EngineConfig
from trivium.config_io import vllm_arguments


def engine_config(model: str, arguments: Mapping[str, Any]) -> EngineConfig:
    """As `vllm_arguments.engine_config`, with defaults for whoever waits for a whole batch."""
    return vllm_arguments.engine_config(model, {"prompt_spread": 1, **{name: value for name, value in arguments.items() if value is not None}})

"""vLLM's engine arguments, as `LLM(...)` and a `model.json` of Triton's vLLM back end name them, to `EngineConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trivium.config import EngineConfig
from trivium.config_io.resolve import build_engine_config
from trivium.errors import ConfigError

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "enable_chunked_prefill": (True,),
    "disable_log_requests": (True, False),
    "disable_log_stats": (True, False),
    "enable_log_requests": (True, False),
    "engine_use_ray": (False,),
    "worker_use_ray": (False,),
    "swap_space": (0, 4),
    "cpu_offload_gb": (0,),
    "enable_lora": (False,),
    "max_lora_rank": (16,),
    "limit_mm_per_prompt": ({},),
    "speculative_config": (),
    "compilation_config": ({},),
    "hf_overrides": ({},),
    "disable_custom_all_reduce": (False, True),
    "distributed_executor_backend": ("mp", "uni"),
}
"""Arguments that Trivium has no use for, with the values that ask for nothing."""


def engine_config(model: str, arguments: Mapping[str, Any]) -> EngineConfig:
    """None stands for an argument's default, as if it were not given. Raises `ConfigError` for an argument that is unknown, of the wrong type
    or asks for what Trivium can't do."""
    kept: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        if name not in NEUTRAL:
            kept[name] = value
        elif value not in NEUTRAL[name]:
            raise ConfigError(f"{name}={value!r} is not supported.", param=name)
    return build_engine_config(model=model, **kept)

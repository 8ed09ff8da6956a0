"""Fields of the format that Trivium can't honour: refused by name, so that nobody believes in them."""

from __future__ import annotations

from collections.abc import Iterator

from trivium.protocol.model_config import ModelConfig
from trivium.repository.backend_names import LLM_BACKENDS
from trivium.repository.config_text import Field


def check_support(config: ModelConfig) -> Iterator[tuple[str, Field]]:
    """Messages and fields."""
    for field, why in _refused(config):
        yield f"{'.'.join(str(part) for part in field if isinstance(part, str))} is not supported for {config.name}: {why}", field


def _refused(config: ModelConfig) -> Iterator[tuple[Field, str]]:
    if config.runtime:
        yield ("runtime",), "back ends are built in"
    if config.model_repository_agents.agents:
        yield ("model_repository_agents",), "there are no repository agents"
    if config.model_operations.op_library_filename:
        yield ("model_operations", "op_library_filename"), "native code of the repository is not run"
    for index, group in enumerate(config.instance_group):
        if group.secondary_devices:
            yield ("instance_group", index, "secondary_devices"), "there is no back end for such devices"
        if group.host_policy:
            yield ("instance_group", index, "host_policy"), "there are no host policies"
    for index, step in enumerate(config.ensemble_scheduling.step):
        if step.model_namespace:
            yield ("ensemble_scheduling", "step", index, "model_namespace"), "model names are unique among all repositories"
    if config.backend in LLM_BACKENDS:
        yield from _refused_by_engine(config)


def _refused_by_engine(config: ModelConfig) -> Iterator[tuple[Field, str]]:
    for index, group in enumerate(config.instance_group):
        if group.count > 1:
            yield ("instance_group", index, "count"), "one engine answers all requests of a language model together"
        if list(group.gpus) not in ([], [0]):
            yield ("instance_group", index, "gpus"), "a language model begins at the first visible GPU and takes tensor_parallel_size of them"
    if config.HasField("sequence_batching"):
        yield ("sequence_batching",), "language models take each request on its own"
    if config.response_cache.enable:
        yield ("response_cache",), "language models have the prefix cache instead"

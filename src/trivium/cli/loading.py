"""What commands say of a model before and while it is loaded."""

from __future__ import annotations

from pathlib import Path

from trivium.arch import ModelSpec
from trivium.backends import llm_load
from trivium.backends.llm_load import Loaded
from trivium.cli.terminal import Steps
from trivium.config import EngineConfig, ModelSettings
from trivium.errors import ConfigError
from trivium.metrics.instruments import Registry
from trivium.sources import packaged, resolve_for
from trivium.sources.objects import is_url


def served_names(settings: ModelSettings) -> tuple[str, ...]:
    """The model's name in the API and its aliases."""
    return tuple(dict.fromkeys(settings.served_model_name)) or (settings.model or packaged.NAME,)


def check_model(settings: ModelSettings, *, tensor_parallel_size: int = 1) -> None:
    """What can be said about a model on this machine from its config alone, before anything is started; hub names and URLs are left to loading.

    Raises `ConfigError` or `ModelLoadError`: files that are missing, an architecture we don't know, a length it doesn't have, a number of
    ranks that doesn't divide its attention heads.
    """
    name = settings.model
    if is_url(name):
        return
    if name and not name.startswith((".", "~")) and not name.endswith(".gguf") and not Path(name).is_absolute() and not Path(name).exists():
        return
    files = resolve_for(settings)
    spec = ModelSpec.from_config(files.config, max_model_len=settings.max_model_len)
    heads = min(layer.attention.num_heads for layer in spec.layers)
    if heads % tensor_parallel_size:
        sizes = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        message = f"tensor_parallel_size {tensor_parallel_size} does not divide the model's {heads} attention heads; possible: {sizes}."
        raise ConfigError(message, param="tensor_parallel_size")


async def load_backend(config: EngineConfig, *, name: str, registry: Registry, steps: Steps) -> Loaded:
    """See `llm_load.load_backend`, with progress on the terminal."""
    return await llm_load.load_backend(config, name=name, registry=registry, on_progress=steps.update)

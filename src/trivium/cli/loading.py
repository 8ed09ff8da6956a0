"""From an engine's config to a backend that answers: files, engine process, tokenizer and template, side by side where they can be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from trivium.arch import ModelSpec
from trivium.backends.llm import LLMBackend
from trivium.cli.terminal import Steps
from trivium.client.engine_client import EngineClient
from trivium.config import EngineConfig, ModelSettings
from trivium.metrics.instruments import Registry
from trivium.protocol.messages import EngineReady, Progress
from trivium.sources import ModelFiles, packaged, resolve_for
from trivium.text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer


@dataclass(frozen=True)
class Loaded:
    backend: LLMBackend
    engine: EngineClient
    ready: EngineReady
    has_chat: bool
    """Whether there is a chat template."""


def served_names(settings: ModelSettings) -> tuple[str, ...]:
    """The model's name in the API and its aliases."""
    return tuple(dict.fromkeys(settings.served_model_name)) or (settings.model or packaged.NAME,)


def check_model(settings: ModelSettings) -> None:
    """What can be said about a model on this machine from its config alone, before anything is started; hub names are left to loading.

    Raises `ConfigError` or `ModelLoadError`: files that are missing, an architecture we don't know, a length it doesn't have.
    """
    name = settings.model
    if name and not name.startswith((".", "~")) and not name.endswith(".gguf") and not Path(name).is_absolute() and not Path(name).exists():
        return
    files = resolve_for(settings)
    ModelSpec.from_config(files.config, max_model_len=settings.max_model_len)


def _load_text(files: ModelFiles, settings: ModelSettings) -> tuple[Tokenizer | None, ChatTemplate | None]:
    if settings.skip_tokenizer_init:
        return None, None
    template = load_chat_template(files, settings.tokenizer, override=settings.chat_template, hub=settings.hub)
    return load_tokenizer(files, settings.tokenizer, hub=settings.hub), template


async def load_backend(config: EngineConfig, *, name: str, registry: Registry, steps: Steps) -> Loaded:
    """Raises `ConfigError` or `ModelLoadError`. Cancelling it ends the engine process."""
    settings = config.model
    steps.update("finding the model", 0, 0)
    files = await asyncio.to_thread(resolve_for, settings, progress=steps.update)
    ModelSpec.from_config(files.config, max_model_len=settings.max_model_len)
    text = asyncio.create_task(asyncio.to_thread(_load_text, files, settings), name="tokenizer")
    starting = asyncio.create_task(EngineClient.start(config, on_progress=lambda step: _show(steps, step)), name="engine-start")
    try:
        # A tokenizer that can't be read is told at once, not after a minute of loading weights.
        tokenizer, template = await text
        engine = await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    ready = engine.ready
    assert ready is not None, "the engine started but is not ready"
    backend = LLMBackend(
        name=name,
        engine=engine,
        tokenizer=tokenizer,
        template=template,
        config=files.config,
        generation_config=files.generation_config,
        settings=settings,
        registry=registry,
    )
    return Loaded(backend, engine, ready, has_chat=template is not None)


def _show(steps: Steps, progress: Progress) -> None:
    steps.update(progress.stage, progress.done, progress.total, progress.unit)

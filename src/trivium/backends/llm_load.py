"""From an engine's config to a backend that answers: files, engine process, tokenizer and template, side by side where they can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from trivium.arch import ModelSpec
from trivium.backends.llm import LLMBackend
from trivium.client.engine_client import EngineClient
from trivium.config import EngineConfig, ModelSettings
from trivium.metrics.instruments import Registry
from trivium.protocol.messages import EngineReady, Progress
from trivium.sources import ModelFiles, resolve_for
from trivium.text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer

OnProgress = Callable[[str, int, int, str], None]
"""Step, units done, units in all (0: unknown), what a unit is. May be called from any thread."""


@dataclass(frozen=True)
class Loaded:
    backend: LLMBackend
    engine: EngineClient
    ready: EngineReady
    has_chat: bool
    """Whether there is a chat template."""


def _load_text(files: ModelFiles, settings: ModelSettings) -> tuple[Tokenizer | None, ChatTemplate | None]:
    if settings.skip_tokenizer_init:
        return None, None
    template = load_chat_template(files, settings.tokenizer, override=settings.chat_template, hub=settings.hub)
    return load_tokenizer(files, settings.tokenizer, hub=settings.hub), template


async def load_backend(config: EngineConfig, *, name: str, registry: Registry, on_progress: OnProgress) -> Loaded:
    """Raises `ConfigError` or `ModelLoadError`. Cancelling it ends the engine process."""
    settings = config.model
    on_progress("finding the model", 0, 0, "")
    files = await asyncio.to_thread(resolve_for, settings, progress=on_progress)
    ModelSpec.from_config(files.config, max_model_len=settings.max_model_len)
    text = asyncio.create_task(asyncio.to_thread(_load_text, files, settings), name="tokenizer")
    starting = asyncio.create_task(EngineClient.start(config, on_progress=lambda step: _show(on_progress, step)), name="engine-start")
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


def _show(on_progress: OnProgress, progress: Progress) -> None:
    on_progress(progress.stage, progress.done, progress.total, progress.unit)

"""A conversation with an engine of our own, in this terminal's process tree."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import uvloop

from trivium.cli.loading import load_backend, served_names
from trivium.cli.remote import Message
from trivium.cli.terminal import Steps
from trivium.config import EngineConfig
from trivium.errors import ConfigError
from trivium.metrics.instruments import Registry
from trivium.types import ChatMessage, GenerateRequest, SamplingParams, TokenEvent


class LocalTalker:
    """Starts an engine and waits until it can answer. The event loop turns only while something is waited for."""

    def __init__(self, config: EngineConfig) -> None:
        self.model = served_names(config.model)[0]
        self._ids = itertools.count(1)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            with Steps() as steps:
                loaded = self._runner.run(load_backend(config, name=self.model, registry=Registry(), steps=steps))
        except BaseException:
            self._runner.close()
            raise
        self._backend = loaded.backend
        if not loaded.has_chat:
            self.close()
            raise ConfigError("This model has no chat template; set one with --chat-template.", param="chat_template")

    def reply(self, messages: list[Message], sampling: Mapping[str, Any]) -> Iterator[str]:
        values: dict[str, Any] = {"max_tokens": None, **self._backend.info.sampling_defaults, **sampling}
        request = GenerateRequest(
            request_id=f"chat-{next(self._ids)}",
            model=self.model,
            params=SamplingParams(**values),
            messages=[ChatMessage(role=message["role"], content=message["content"]) for message in messages],
            add_special_tokens=False,
        )
        generation = self._backend.generate(request)
        try:
            while True:
                try:
                    event = self._runner.run(_next(generation))
                except StopAsyncIteration:
                    return
                if isinstance(event, TokenEvent) and event.text:
                    yield event.text
        finally:
            self._runner.run(generation.aclose())

    def close(self) -> None:
        self._runner.run(self._backend.close())
        self._runner.close()


async def _next(generation: Any) -> Any:
    return await anext(generation)

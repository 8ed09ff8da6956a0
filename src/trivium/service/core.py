"""`InferenceService`: the only object a frontend knows. Names, admission, deadlines, health and drain; what a model does is its backend's.

A request counts against the bound from the moment it is admitted until it ended, however it ended. A model takes on as many sequences as
it works on at once plus `max_queued`; what comes beyond is refused at once with `Overloaded`, before it costs anything.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from typing import Any

from trivium.backends.base import ChatPrompt, GenerateEvent, Generation, ModelBackend, ModelInfo, Vocabulary
from trivium.errors import DeadlineExceeded, InvalidRequest, NotReady, Overloaded, TriviumError
from trivium.metrics.catalogue import ADMISSION_REJECTIONS
from trivium.metrics.exposition import Exposition
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import QUEUE_FULL
from trivium.repository.manager import Lease, ModelManager, ModelState
from trivium.types import GenerateRequest

__all__ = ["ChatPrompt", "GenerateEvent", "Generation", "InferenceService", "ModelInfo", "ServiceLimits", "Vocabulary"]

REFRESH_TIMEOUT_S = 0.25
"""How long a scrape waits for an engine to report fresh figures."""
LATE_PROBE_S = 0.2
"""How long a readiness check waits for an engine that answered another one not long ago."""
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    max_queued: int = 1024
    """Sequences that may wait, for each model, beyond those it works on at once."""
    request_timeout_s: float | None = None
    probe_timeout_s: float = 10.0


class InferenceService:
    """Belongs to one event loop."""

    def __init__(self, manager: ModelManager, *, limits: ServiceLimits | None = None, registry: Registry | None = None) -> None:
        self.manager = manager
        self.limits = limits or ServiceLimits()
        self.registry = registry or Registry()
        self._exposition = Exposition(self.registry)
        self._running: dict[Generation, int] = {}
        self._load: dict[ModelBackend, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._refuses_work = False
        self._probe: asyncio.Task[TriviumError | None] | None = None
        self._probed_at = -math.inf
        self._page: asyncio.Task[bytes] | None = None

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def generate(self, request: GenerateRequest) -> Generation:
        """An async iterator of one `PromptInfo` and then `TokenEvent`s. The caller closes it, whatever happens.

        Raises `ModelNotFound`, `NotReady` or `Overloaded` at once; what is wrong with the request itself is raised by `start()` or, without
        it, by the first `__anext__`.
        """
        return self.generate_all([request])[0]

    def generate_all(self, requests: list[GenerateRequest]) -> list[Generation]:
        """As `generate`, for requests to one model that belong together: all are admitted or none."""
        lease = self._lease(requests[0].model)
        try:
            self._admit(lease.backend, requests)
            return [self._generate(request, self._lease(request.model)) for request in requests]
        finally:
            lease.release()

    def _generate(self, request: GenerateRequest, lease: Lease) -> Generation:
        backend = lease.backend
        generation = backend.generate(request)
        self._load[backend] = self._load.get(backend, 0) + request.n
        self._running[generation] = request.n
        self._idle.clear()
        timer = self._start_deadline(generation, request.timeout_s)
        generation.add_done_callback(lambda: self._on_done(generation, lease, timer))
        return generation

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool = True) -> list[int]:
        with self._leased(model) as backend:
            return await backend.tokenize(text, add_special_tokens=add_special_tokens)

    async def tokenize_chat(self, model: str, prompt: ChatPrompt) -> list[int]:
        with self._leased(model) as backend:
            return await backend.tokenize_chat(prompt)

    async def detokenize(self, model: str, token_ids: list[int]) -> str:
        with self._leased(model) as backend:
            return await backend.detokenize(token_ids)

    def vocabulary(self, model: str) -> Vocabulary:
        """To be used as long as a request of the model is open."""
        with self._leased(model) as backend:
            return backend

    # -- what is there ------------------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelInfo]:
        return [replace(backend.info, name=name) for name, backend in self.manager.backends()]

    def model(self, name: str) -> ModelInfo:
        """An empty name means the first model. Raises `ModelNotFound` or `NotReady`."""
        lease = self._lease(name)
        lease.release()
        return replace(lease.backend.info, name=lease.name)

    @property
    def num_running(self) -> int:
        """Requests that are admitted and have not ended."""
        return len(self._running)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    # -- health -------------------------------------------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Raises `NotReady` unless every model is loaded and its engine runs."""
        states = self.manager.states()
        for name, state in states.items():
            if state is not ModelState.READY:
                raise NotReady(f"The model {name!r} is {state}.")
        if not states:
            raise NotReady("No model is loaded.")
        for name, backend in self.manager.backends():
            if not backend.is_alive:
                raise NotReady(f"The engine of model {name!r} is not running.")

    async def check_ready(self) -> None:
        """Raises `NotReady` unless every model is loaded and every engine's own loop answers a probe.

        Concurrent calls share one probe. While one is late (the engine may be inside a long step) an answer no older than
        `probe_timeout_s` still counts.
        """
        if self._is_draining:
            raise NotReady("The server is shutting down.")
        self.check_health()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._probe_all(), name="readiness-probe")
        probe = self._probe
        answered_recently = time.monotonic() < self._probed_at + self.limits.probe_timeout_s
        done, _ = await asyncio.wait([probe], timeout=LATE_PROBE_S if answered_recently else None)
        error = probe.result() if done else None
        if error is not None:
            raise error

    async def _probe_all(self) -> TriviumError | None:
        """What went wrong, as a value: nobody may be there to take an exception."""
        try:
            await asyncio.gather(*(backend.probe(self.limits.probe_timeout_s) for backend in self._distinct_backends()))
        except TriviumError as error:
            return error
        self._probed_at = time.monotonic()
        return None

    # -- metrics ------------------------------------------------------------------------------------------------------------------

    async def render_metrics(self) -> bytes:
        """The Prometheus page, with figures the engines report now if they can; rendered in a thread, once for calls at the same time."""
        if self._page is None or self._page.done():
            self._page = asyncio.create_task(self._render_page(), name="metrics-page")
        return await asyncio.shield(self._page)

    async def _render_page(self) -> bytes:
        probes = (backend.probe(REFRESH_TIMEOUT_S) for backend in self._distinct_backends())
        await asyncio.gather(*probes, return_exceptions=True)
        self.registry.refresh()
        return await asyncio.to_thread(self._exposition.render)

    # -- the end ------------------------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Readiness goes false; requests are still accepted, for load balancers that have not noticed yet."""
        self._is_draining = True

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests with `NotReady` and wait for those accepted; after `timeout_s` the rest fail. Returns whether none had to."""
        self._is_draining = self._refuses_work = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            for generation in list(self._running):
                generation.fail(NotReady("The server is shutting down."))
            return False
        return True

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [task for task in (self._probe, self._page) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.manager.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _lease(self, name: str) -> Lease:
        if self._refuses_work:
            raise NotReady("The server is shutting down.")
        return self.manager.lease(name)

    def _leased(self, name: str) -> _Leased:
        return _Leased(self._lease(name))

    def _admit(self, backend: ModelBackend, requests: list[GenerateRequest]) -> None:
        num_sequences = sum(request.n for request in requests)
        bound = backend.max_num_seqs + self.limits.max_queued
        load = self._load.get(backend, 0)
        if num_sequences > bound:
            message = f"The request asks for {num_sequences} sequences, but this server takes on at most {bound} at once."
            raise InvalidRequest(message, param="n" if max(request.n for request in requests) > bound or len(requests) == 1 else "prompt")
        if load + num_sequences > bound:
            self.registry.counter(ADMISSION_REJECTIONS, backend.info.name, QUEUE_FULL).inc()
            waves = 1 + max(0, load - backend.max_num_seqs) // max(1, backend.max_num_seqs)
            raise Overloaded(f"The queue is full: {load} sequences are in progress or waiting.", retry_after_s=min(waves, MAX_RETRY_AFTER_S))

    def _start_deadline(self, generation: Generation, timeout_s: float | None) -> asyncio.TimerHandle | None:
        limits = [limit for limit in (timeout_s, self.limits.request_timeout_s) if limit is not None]
        if not limits:
            return None
        limit = min(limits)
        error: TriviumError = DeadlineExceeded(f"The request did not finish within {limit:g} s.")
        return asyncio.get_running_loop().call_later(limit, generation.fail, error)

    def _on_done(self, generation: Generation, lease: Lease, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
        num_sequences = self._running.pop(generation)
        self._load[lease.backend] -= num_sequences
        lease.release()
        if not self._running:
            self._idle.set()

    def _distinct_backends(self) -> list[ModelBackend]:
        return list(dict.fromkeys(backend for _, backend in self.manager.backends()))


class _Leased:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> ModelBackend:
        return self._lease.backend

    def __exit__(self, *_: object) -> None:
        self._lease.release()

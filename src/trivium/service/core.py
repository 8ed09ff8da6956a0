"""`InferenceService`: the only object a frontend knows. Names, admission, deadlines, health and drain; what a model does is its backend's.

A request counts against the bound from the moment it is admitted until it ended, however it ended. A model takes on as many sequences as
it works on at once plus `max_queued`; what comes beyond is refused at once with `Overloaded`, before it costs anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, replace
from typing import Any

from trivium.backends.base import ChatPrompt, GenerateEvent, Generation, ModelBackend, ModelInfo, Vocabulary
from trivium.backends.tensor_repository import TensorRepository
from trivium.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, NotReady, Overloaded, TriviumError
from trivium.metrics.catalogue import ADMISSION_REJECTIONS, HELD_SEQUENCES
from trivium.metrics.exposition import Exposition
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import QUEUE_FULL, QUEUE_TIMEOUT
from trivium.repository.manager import Lease, ModelManager, ModelState
from trivium.service.llm_repository import LlmRepository
from trivium.service.queue import FairQueue, QueuedGeneration
from trivium.service.tensors import TensorService
from trivium.types import GenerateRequest, TextSpan

__all__ = ["ChatPrompt", "GenerateEvent", "Generation", "InferenceService", "ModelInfo", "ServiceLimits", "Vocabulary"]

REFRESH_TIMEOUT_S = 0.25
"""How long a scrape waits for an engine to report fresh figures."""
LATE_PROBE_S = 0.2
"""How long a readiness check waits for an engine that answered another one not long ago."""
MAX_RETRY_AFTER_S = 60
MAX_NAMES_TOLD = 5
"""In the error about a name that isn't there."""


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    max_queued: int = 1024
    """Sequences that may wait, for each model, beyond those it works on at once."""
    max_concurrent: int | None = None
    """Sequences in all, for each model, where that is fewer."""
    is_fair: bool = False
    """Share the queue fairly between clients (`GenerateRequest.client`)."""
    queue_timeout_s: float | None = None
    """Longest wait for a turn."""
    ignores_unknown_names: bool = False
    """Take the first model where there is none of the name asked for."""
    request_timeout_s: float | None = None
    probe_timeout_s: float = 10.0

    @property
    def takes_turns(self) -> bool:
        """Requests wait in the service, and not in the engine."""
        return self.is_fair or self.queue_timeout_s is not None


class InferenceService:
    """Belongs to one event loop."""

    def __init__(
        self,
        manager: ModelManager,
        *,
        limits: ServiceLimits | None = None,
        registry: Registry | None = None,
        repository: TensorRepository | None = None,
    ) -> None:
        """Without a `repository`, tensor requests are answered by the manager's language models."""
        self.manager = manager
        self.limits = limits or ServiceLimits()
        self.registry = registry or Registry()
        self._repository = repository
        begin = self._queued if self.limits.takes_turns else None
        self.tensors = TensorService(repository or LlmRepository(manager), request_timeout_s=self.limits.request_timeout_s, begin=begin)
        self._exposition = Exposition(self.registry)
        self._running: dict[Generation, int] = {}
        self._load: dict[ModelBackend, int] = {}
        self._queues: dict[ModelBackend, FairQueue] = {}
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
        generation = self._queued(backend, request)
        self._load[backend] = self._load.get(backend, 0) + request.n
        self._running[generation] = request.n
        self._idle.clear()
        timer = self._start_deadline(generation, request.timeout_s)
        generation.add_done_callback(lambda: self._on_done(generation, lease, timer))
        return generation

    def _queued(self, backend: ModelBackend, request: GenerateRequest) -> Generation:
        """The backend's generation; it waits for its turn if turns are what was asked for. Else the engine's own queue decides."""
        limits = self.limits
        generation = backend.generate(request)
        if not limits.takes_turns:
            return generation
        queue = self._queues.get(backend)
        if queue is None:
            held = self.registry.gauge(HELD_SEQUENCES, backend.info.name)
            queue = self._queues[backend] = FairQueue(backend.max_num_seqs, on_change=held.set)
        timeout = None if limits.queue_timeout_s is None else (limits.queue_timeout_s, lambda: self._waited_too_long(backend))
        return QueuedGeneration(generation, queue, request.client if limits.is_fair else "", request.n, timeout)

    def check_room(self, model: str, num_sequences: int = 1) -> None:
        """Raises `Overloaded` or `InvalidRequest` if a request for so many sequences would be refused now: before work is put into it."""
        with self._leased(model) as backend:
            self._check_room(backend, num_sequences, is_one=True)

    def max_concurrent(self, model: str) -> int:
        """Sequences of a model that may run and wait in all."""
        with self._leased(model) as backend:
            return self._bound(backend)

    async def tokenize(self, model: str, text: str, *, add_special_tokens: bool = True, is_bounded: bool = True) -> list[int]:
        with self._leased(model) as backend:
            return await backend.tokenize(text, add_special_tokens=add_special_tokens, is_bounded=is_bounded)

    async def tokenize_chat(self, model: str, prompt: ChatPrompt) -> list[int]:
        with self._leased(model) as backend:
            return await backend.tokenize_chat(prompt)

    async def render_chat(self, model: str, prompt: ChatPrompt) -> str:
        with self._leased(model) as backend:
            return await backend.render_chat(prompt)

    async def spans(self, model: str, text: str, *, add_special_tokens: bool = True) -> list[TextSpan]:
        with self._leased(model) as backend:
            return await backend.spans(text, add_special_tokens=add_special_tokens)

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
        return len(self._running) + self.tensors.num_running

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    # -- health -------------------------------------------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Raises `NotReady` unless every model is loaded and its engine runs; of models in a repository, as far as that asks for it."""
        states = self.manager.states(required_only=True)
        for name, state in states.items():
            if state is not ModelState.READY:
                raise NotReady(f"The model {name!r} is {state}.")
        if self._repository is not None:
            self._repository.check_ready()
        elif not states:
            raise NotReady("No model is loaded.")
        for name, backend in self.manager.backends(required_only=True):
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

    async def is_ready(self) -> bool:
        """`check_ready` as a yes or no."""
        try:
            await self.check_ready()
        except TriviumError:
            return False
        return True

    async def _probe_all(self) -> TriviumError | None:
        """What went wrong, as a value: nobody may be there to take an exception."""
        try:
            await asyncio.gather(*(backend.probe(self.limits.probe_timeout_s) for backend in self._distinct_backends(required_only=True)))
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
        self.tensors.refuse_work()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                await self.tensors.wait_idle()
        except TimeoutError:
            error = NotReady("The server is shutting down.")
            for generation in list(self._running):
                generation.fail(error)
            self.tensors.fail_all(error)
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
        try:
            return self.manager.lease(name)
        except ModelNotFound:
            if self.limits.ignores_unknown_names and self.manager.names():
                return self.manager.lease("")
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> ModelNotFound:
        """There is no such language model: says what it is instead, or which there are."""
        names = self.manager.names()
        known = ", ".join(names[:MAX_NAMES_TOLD]) + (f" and {len(names) - MAX_NAMES_TOLD} more" if len(names) > MAX_NAMES_TOLD else "")
        others = f" Models here: {known}." if names else " No language model is served here."
        if self._repository is not None and name:
            with contextlib.suppress(TriviumError):
                self._repository.versions(name)
                return ModelNotFound(f"The model {name!r} is not a language model: it answers under /v2/models/{name}.{others}", param="model")
        return ModelNotFound(f"The model {name!r} does not exist.{others}" if name else others.strip(), param="model")

    def _leased(self, name: str) -> _Leased:
        return _Leased(self._lease(name))

    def _admit(self, backend: ModelBackend, requests: list[GenerateRequest]) -> None:
        is_one = max(request.n for request in requests) > self._bound(backend) or len(requests) == 1
        self._check_room(backend, sum(request.n for request in requests), is_one=is_one)

    def _bound(self, backend: ModelBackend) -> int:
        bound = backend.max_num_seqs + self.limits.max_queued
        return bound if self.limits.max_concurrent is None else min(bound, self.limits.max_concurrent)

    def _check_room(self, backend: ModelBackend, num_sequences: int, *, is_one: bool) -> None:
        """`is_one`: a single request wants them, not several prompts together."""
        bound, load = self._bound(backend), self._load.get(backend, 0)
        if num_sequences > bound:
            message = f"The request asks for {num_sequences} sequences, but this server takes on at most {bound} at once."
            raise InvalidRequest(message, param="n" if is_one else "prompt")
        if load + num_sequences > bound:
            raise self._overloaded(backend, QUEUE_FULL, f"The queue is full: {load} sequences are in progress or waiting.")

    def _waited_too_long(self, backend: ModelBackend) -> Overloaded:
        return self._overloaded(backend, QUEUE_TIMEOUT, f"The request's turn did not come within {self.limits.queue_timeout_s:g} s.")

    def _overloaded(self, backend: ModelBackend, reason: str, message: str) -> Overloaded:
        self.registry.counter(ADMISSION_REJECTIONS, backend.info.name, reason).inc()
        waves = 1 + max(0, self._load.get(backend, 0) - backend.max_num_seqs) // max(1, backend.max_num_seqs)
        return Overloaded(message, retry_after_s=min(waves, MAX_RETRY_AFTER_S))

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
        if not self._load[lease.backend]:
            del self._load[lease.backend]  # of a model that is gone nothing may be left
        lease.release()
        if not self._running:
            self._idle.set()

    def _distinct_backends(self, *, required_only: bool = False) -> list[ModelBackend]:
        return list(dict.fromkeys(backend for _, backend in self.manager.backends(required_only=required_only)))


class _Leased:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> ModelBackend:
        return self._lease.backend

    def __exit__(self, *_: object) -> None:
        self._lease.release()

"""A scripted engine without a model, and a backend around it: one token is one byte, and the answer to a prompt is the prompt, again and again.

Words in a prompt steer it: `!fail` makes that request fail after two tokens, `!die` kills the engine (it comes back after a while), `!hang`
stops its loop, `!end` ends the answer with EOS after five tokens. Sampled choices (temperature above 0) start `seed` tokens further on.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from trivium.backends.llm import LLMBackend
from trivium.config import ModelSettings
from trivium.errors import EngineDead, NotReady, TriviumError
from trivium.metrics.instruments import Registry
from trivium.protocol.messages import AddRequest, EngineReady, EngineStats, TokenLogprobs, TokenOutput
from trivium.text import ChatTemplate, Tokenizer

EOS = "<|eos|>"
SPECIALS = (EOS, "<|bos|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 256
VOCAB_SIZE = 260
NUM_BLOCKS = 1000
BLOCK_SIZE = 16
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Token id = byte value; the special tokens follow."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
    vocab |= {name: 256 + place for place, name in enumerate(SPECIALS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, eos_token=EOS, bos_token="<|bos|>", other_special_tokens=SPECIALS[2:])


@dataclass
class Running:
    request: AddRequest
    outputs: deque[TokenOutput] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    num_output: int = 0
    failure: TriviumError | None = None

    text: bytes = b""

    def __post_init__(self) -> None:
        self.text = bytes(token_id for token_id in self.request.prompt_token_ids if token_id < 256)

    def put(self, output: TokenOutput) -> None:
        self.outputs.append(output)
        self.arrived.set()

    def fail(self, error: TriviumError) -> None:
        self.failure = error
        self.arrived.set()


class FakeEngine:
    """Implements `client.protocol.EngineClientProtocol`."""

    def __init__(self, *, step_s: float = 0.0, max_model_len: int = 1024, max_num_seqs: int = 256, restart_s: float = 0.3) -> None:
        self.step_s = step_s
        self.restart_s = restart_s
        self._ready = EngineReady(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            device="none",
            dtype="none",
        )
        self.ready: EngineReady | None = self._ready
        self.is_dead = False
        self.is_hanging = False
        self.is_closed = False
        self.aborted: list[str] = []
        self.submitted: list[AddRequest] = []
        self.num_dropped = 0
        self._running: dict[str, Running] = {}
        self._waiting: dict[str, Running] = {}
        self._stats = EngineStats(num_blocks=NUM_BLOCKS, num_free_blocks=NUM_BLOCKS)
        self._listeners: list[Callable[[EngineStats], None]] = []
        self._loop_task: asyncio.Task[None] | None = None

    async def submit(self, request: AddRequest) -> AsyncIterator[TokenOutput]:
        if self.ready is None:
            raise NotReady("The engine is being restarted.")
        self.submitted.append(request)
        running = self._waiting[request.request_id] = Running(request)
        self._wake()
        is_finished = False
        try:
            while not is_finished:
                while not running.outputs:
                    if running.failure is not None:
                        raise running.failure
                    running.arrived.clear()
                    await running.arrived.wait()
                output = running.outputs.popleft()
                is_finished = output.finish_reason is not None
                yield output
        finally:
            if not is_finished:
                self.abort([request.request_id])

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            found = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
            if found is not None:
                self.aborted.append(request_id)
                found.put(TokenOutput(request_id=request_id, finish_reason="abort"))
        self._report([])

    async def probe(self, timeout_s: float) -> EngineStats:
        if self.ready is None:
            raise NotReady("The engine is being restarted.")
        if self.is_hanging:
            await asyncio.sleep(timeout_s)
            raise NotReady(f"The engine did not answer a probe within {timeout_s:g} s.")
        self._report([])
        return self._stats

    def stats(self) -> EngineStats:
        return self._stats

    def add_stats_listener(self, listener: Callable[[EngineStats], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        self.is_closed = True
        if self._loop_task is not None:
            self._loop_task.cancel()

    def die(self) -> None:
        """As `kill -9` of the process looks from here."""
        self.ready = None
        self.is_dead = True
        for running in [*self._running.values(), *self._waiting.values()]:
            running.fail(EngineDead("The engine process ended unexpectedly (signal 9)."))
        self._running.clear()
        self._waiting.clear()
        self._stats = EngineStats(num_blocks=NUM_BLOCKS, num_free_blocks=NUM_BLOCKS)
        asyncio.get_running_loop().call_later(self.restart_s, self._restart)

    def _restart(self) -> None:
        self.ready = self._ready
        self.is_dead = False

    # -- the loop -----------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._steps())

    async def _steps(self) -> None:
        while self._running or self._waiting:
            await asyncio.sleep(self.step_s)
            if not self.is_hanging:
                self._step()

    def _step(self) -> None:
        num_tokens = len(self._running)
        while self._waiting and len(self._running) < self._ready.max_num_seqs:
            request_id = next(iter(self._waiting))
            running = self._running[request_id] = self._waiting.pop(request_id)
            prompt = running.request.prompt_token_ids
            num_tokens += len(prompt)
            num_cached = len(prompt) // BLOCK_SIZE * BLOCK_SIZE if b"!cached" in running.text else 0
            self._stats.prompt_tokens += len(prompt)
            self._stats.prefix_queries += len(prompt)
            self._stats.prefix_hits += num_cached
            running.put(TokenOutput(request_id=request_id, scheduled_at=time.monotonic()))
            if b"!preempt" in running.text:
                self._stats.num_preemptions += 1
        for running in list(self._running.values()):
            if b"!die" in running.text and running.num_output == 2:
                self.die()
                return
            self.is_hanging |= b"!hang" in running.text
            self._token(running)
        self._stats.num_steps += 1
        self._report([num_tokens])

    def _token(self, running: Running) -> None:
        request = running.request
        params = request.params
        output = TokenOutput(request_id=request.request_id)
        if b"!fail" in running.text and running.num_output == 2:
            output.finish_reason, output.error_slug, output.error_message = "error", "generation_failed", "The logits of this request are not finite."
            self._finish(running, output)
            return
        first = running.num_output == 0
        output.token_ids = [self._next_token(running)]
        running.num_output += 1
        self._stats.generation_tokens += 1
        if params.logprobs is not None:
            output.logprobs = [_logprobs(output.token_ids[0], params.logprobs)]
        if first:
            prompt = request.prompt_token_ids
            output.num_cached_tokens = len(prompt) // BLOCK_SIZE * BLOCK_SIZE if b"!cached" in running.text else 0
            if params.prompt_logprobs is not None:
                output.prompt_logprobs = [None, *(_logprobs(token_id, params.prompt_logprobs) for token_id in prompt[1:])]
        last = output.token_ids[0]
        is_past_min = running.num_output >= params.min_tokens
        if last in request.eos_token_ids and not params.ignore_eos and is_past_min:
            output.finish_reason = "stop"
        elif params.stop_token_ids and last in params.stop_token_ids and is_past_min:
            output.finish_reason, output.stop_reason = "stop", last
        elif running.num_output >= request.max_tokens:
            output.finish_reason = "length"
        if output.finish_reason is None:
            running.put(output)
        else:
            self._finish(running, output)

    def _next_token(self, running: Running) -> int:
        request = running.request
        if b"!end" in running.text and running.num_output >= 5:
            return EOS_ID
        start = 0 if request.params.is_greedy else (request.params.seed or 0)
        script = running.text or b"?"
        return script[(start + running.num_output) % len(script)]

    def _finish(self, running: Running, output: TokenOutput) -> None:
        output.num_preemptions = int(b"!preempt" in running.text)
        del self._running[running.request.request_id]
        running.put(output)

    def _report(self, step_tokens: list[int]) -> None:
        stats = self._stats
        held = sum(-(-(len(running.request.prompt_token_ids) + running.num_output) // BLOCK_SIZE) for running in self._running.values())
        stats.num_running, stats.num_waiting, stats.step_tokens = len(self._running), len(self._waiting), step_tokens
        stats.num_free_blocks = NUM_BLOCKS - held
        report = EngineStats(**{name: getattr(stats, name) for name in stats.__struct_fields__})
        for listener in self._listeners:
            listener(report)


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """The token is the most likely one; those after it in the vocabulary follow."""
    top_ids = [(token_id + place) % VOCAB_SIZE for place in range(num_top)]
    return TokenLogprobs(token_id, -0.5, 1, top_ids, [-0.5 - place for place in range(num_top)])


@functools.cache
def chatml() -> ChatTemplate:
    """One for all tests: each has a process of its own, which takes longer to start than a test."""
    template = ChatTemplate(CHATML)
    atexit.register(template.close)
    return template


def fake_backend(
    engine: FakeEngine, registry: Registry, *, name: str = "fake", settings: ModelSettings | None = None, **kwargs: object
) -> LLMBackend:
    arguments: dict[str, object] = {
        "tokenizer": byte_tokenizer(),
        "template": chatml(),
        "config": {"eos_token_id": EOS_ID},
        "generation_config": {},
        **kwargs,
    }
    return LLMBackend(name=name, engine=engine, settings=settings or ModelSettings(model="fake"), registry=registry, **arguments)  # type: ignore[arg-type]

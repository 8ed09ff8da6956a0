"""A language model as a tensor model: Triton's vLLM tensors in, text out.

The first string input is the prompt and the first string output the text, whatever they are called; the optional tensors go by Triton's
names. Several prompts (rows) are continued at once. With `stream` each response carries what was generated since the last one, otherwise
one response carries everything. Without `exclude_input_in_output` an answer that isn't streamed begins with its prompt, as in Triton.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from trivium.backends.base import Generation, ModelBackend
from trivium.backends.llm_tensor_params import LlmTensorRequest, parse_llm_request
from trivium.backends.llm_tensor_text import Texts, response_of
from trivium.backends.signature import model_signature
from trivium.backends.tensor_base import Inference, ModelSignature
from trivium.backends.tensor_checks import RequestChecker
from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.batching.statistics import FailureReason, ModelStatistics
from trivium.errors import InternalError, NotReady, Overloaded, TriviumError
from trivium.execution import ExecutionTimes
from trivium.infer import InferRequest, InferResponse
from trivium.protocol.model_config import ModelConfig
from trivium.types import GenerateRequest, PromptInfo

MAX_RESPONSE_INDEX: Final = 15
"""A stream has a response for each token: those from here on are counted as one."""
BeginGeneration = Callable[[ModelBackend, GenerateRequest], Generation]
MAX_QUEUED: Final = 1024
"""Prompts that may wait beyond those the engine runs at once."""


class LlmTensorModel:
    """A `TensorModel` in front of a `ModelBackend`, which it closes when it is closed."""

    def __init__(self, backend: ModelBackend, config: ModelConfig, version: int) -> None:
        self.config = config
        self._backend = backend
        # Unary requests get the whole text in one answer, whatever the configuration says of decoupling.
        self._signature = replace(model_signature(config, version, Path()), is_decoupled=False)
        self._statistics = ModelStatistics(config.name, version)
        self._checker = RequestChecker(self._signature, batches=False)
        self._tasks: dict[TensorInference, asyncio.Task[None]] = {}
        self._num_prompts = 0

    @property
    def signature(self) -> ModelSignature:
        return self._signature

    @property
    def statistics(self) -> ModelStatistics:
        return self._statistics

    @property
    def is_alive(self) -> bool:
        return self._backend.is_alive

    @property
    def num_pending(self) -> int:
        """The engine's own queue is where requests wait; what is counted here has not been begun by it as far as we know."""
        return max(0, self._num_prompts - self._backend.max_num_seqs)

    def infer(self, request: InferRequest, begin: BeginGeneration | None = None) -> Inference:
        """`begin` takes the place of the backend's `generate`, where requests wait for their turn."""
        arrival_ns = time.monotonic_ns()
        try:
            self._checker.check(request)
            parsed = parse_llm_request(request, self._signature)
            self._check_room(parsed)
        except TriviumError:
            self._statistics.count_failure(FailureReason.OTHER, time.monotonic_ns() - arrival_ns)
            raise
        inference = TensorInference(self, request, arrival_ns=arrival_ns, batch_size=len(parsed.prompts), shape_key=None)
        self._num_prompts += len(parsed.prompts)
        inference.stage = Stage.RUNNING
        self._tasks[inference] = asyncio.create_task(self._run(inference, parsed, begin or _begin), name="llm-tensors")
        return inference

    async def close(self) -> None:
        tasks = list(self._tasks.items())
        for inference, task in tasks:
            inference.fail(NotReady("The model is being unloaded."))
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        await self._backend.close()

    # -- the owner of its inferences ----------------------------------------------------------------------------------------------

    def withdraw(self, inference: TensorInference) -> None:
        """None of them waits here."""

    def reschedule(self, inference: TensorInference) -> None:
        raise AssertionError("language models don't reschedule")

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        return response

    def on_response(self, inference: TensorInference, response: InferResponse) -> None:
        times = self._statistics.response(min(inference.num_responses, MAX_RESPONSE_INDEX))
        (times.empty_response if response.is_null else times.success).add(time.monotonic_ns() - inference.arrival_ns)

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None:
        self._num_prompts -= inference.batch_size
        total_ns = inference.ended_ns - inference.arrival_ns
        if reason is not None:
            self._statistics.count_failure(reason, total_ns)
        else:
            queue_ns = min(max(0, inference.started_ns - inference.arrival_ns), total_ns)
            times = ExecutionTimes(infer_ns=total_ns - queue_ns)
            self._statistics.count_execution(inference.batch_size, times, time.time_ns() // 1_000_000)
            self._statistics.count_success(rows=inference.batch_size, total_ns=total_ns, queue_ns=queue_ns, times=times)
        task = self._tasks.pop(inference, None)
        if task is not None and reason is not None and task is not asyncio.current_task():
            task.cancel()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _check_room(self, parsed: LlmTensorRequest) -> None:
        bound = self._backend.max_num_seqs + MAX_QUEUED
        if self._num_prompts + len(parsed.prompts) > bound:
            raise Overloaded(f"The queue is full: {self._num_prompts} prompts are in progress or waiting.")

    async def _run(self, inference: TensorInference, parsed: LlmTensorRequest, begin: BeginGeneration) -> None:
        requests = [_generate_request(parsed, prompt, self._signature.name, inference.request.client) for prompt in parsed.prompts]
        generations = [begin(self._backend, request) for request in requests]
        try:
            for generation in generations:
                await generation.start()
            if parsed.is_streaming:
                await self._stream(inference, parsed, generations[0])
            else:
                texts = await _read_all(generations, parsed, inference)
                inference.respond(response_of(inference.request, self._signature, parsed, texts, is_final=True))
        except asyncio.CancelledError:
            raise
        except TriviumError as error:
            inference.fail(error)
        except Exception as error:
            inference.fail(InternalError("The model failed to answer."))
            raise error
        finally:
            for generation in generations:
                await generation.aclose()

    async def _stream(self, inference: TensorInference, parsed: LlmTensorRequest, generation: Generation) -> None:
        texts = Texts(parsed.num_choices)
        async for event in generation:
            if isinstance(event, PromptInfo):
                _note_start(inference, event)
                texts.take_prompt(event)
                continue
            texts.take(event)
            is_final = texts.num_finished == parsed.num_choices
            if event.text or event.finish_reason is not None:
                inference.respond(response_of(inference.request, self._signature, parsed, [texts], is_final=is_final))
                texts.clear()


async def _read_all(generations: list[Generation], parsed: LlmTensorRequest, inference: TensorInference) -> list[Texts]:
    """Side by side: a generation reaches the engine when it is read."""
    tasks = [asyncio.create_task(_read(generation, parsed, inference)) for generation in generations]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(generation: Generation, parsed: LlmTensorRequest, inference: TensorInference) -> Texts:
    texts = Texts(parsed.num_choices)
    async for event in generation:
        if isinstance(event, PromptInfo):
            _note_start(inference, event)
            texts.take_prompt(event)
        else:
            texts.take(event)
    return texts


def _note_start(inference: TensorInference, info: PromptInfo) -> None:
    if info.scheduled_at and not inference.started_ns:
        inference.started_ns = int(info.scheduled_at * 1e9)


def _begin(backend: ModelBackend, request: GenerateRequest) -> Generation:
    return backend.generate(request)


def _generate_request(parsed: LlmTensorRequest, prompt: str, model: str, client: str) -> GenerateRequest:
    return GenerateRequest(
        request_id=secrets.token_hex(16),
        model=model,
        params=parsed.params,
        prompt=prompt,
        n=parsed.num_choices,
        priority=parsed.priority,
        client=client,
    )

"""The requests of one call: what is sent to the engine for each, and the results that grow from its outputs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from trivium.backends.llm_choice import Choice, logprobs_dict
from trivium.outputs import CompletionOutput, RequestMetrics, RequestOutput
from trivium.protocol.messages import AddRequest, TokenOutput
from trivium.text import Tokenizer
from trivium.types import TokenEvent

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sequence:
    """One of the n continuations of a prompt while it grows."""

    addition: AddRequest
    choice: Choice
    output: CompletionOutput


class Request:
    """One prompt. `result` is complete once `num_open` is 0."""

    def __init__(self, request_id: str, text: str | None, sequences: list[Sequence], arrived_at: float) -> None:
        self.metrics = RequestMetrics(arrival_time=arrived_at)
        ids = sequences[0].addition.prompt_token_ids
        outputs = [sequence.output for sequence in sequences]
        self.result = RequestOutput(request_id, text, ids, None, outputs, finished=False, metrics=self.metrics)
        self.sequences = sequences
        self.num_open = len(sequences)


class Batch:
    """All requests of a call, in order."""

    def __init__(self, requests: list[Request], tokenizer: Tokenizer | None) -> None:
        self.requests = requests
        self.cut: list[str] = []
        """Sequences that a stop string ended: the engine is still to be told."""
        self._tokenizer = tokenizer
        self._open = {sequence.addition.request_id: (request, sequence) for request in requests for sequence in request.sequences}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def additions(self) -> list[AddRequest]:
        return [sequence.addition for request in self.requests for sequence in request.sequences]

    @property
    def results(self) -> list[RequestOutput]:
        return [request.result for request in self.requests]

    def take(self, output: TokenOutput, now: float) -> int:
        """Adds an output to its sequence. Returns 1 if that ended its request, else 0."""
        found = self._open.get(output.request_id)
        if found is None:
            return 0  # of a sequence that is cut or was given up: the engine had not heard of it yet
        request, sequence = found
        if output.error_message is not None:
            logger.error("request %s failed: %s", output.request_id, output.error_message)
        if output.scheduled_at and request.metrics.first_scheduled_time is None:
            request.metrics.first_scheduled_time = output.scheduled_at
        event = sequence.choice.consume(output, now)
        if event is None:
            return 0
        self._take_prompt(request, output, now)
        _extend(sequence.output, event)
        if event.finish_reason is None:
            return 0
        del self._open[output.request_id]
        if output.finish_reason is None:
            self.cut.append(output.request_id)
        request.num_open -= 1
        if request.num_open:
            return 0
        request.result.finished = True
        request.metrics.finished_time = now
        return 1

    def _take_prompt(self, request: Request, output: TokenOutput, now: float) -> None:
        """What comes with a request's first token."""
        if request.metrics.first_token_time is None:
            request.metrics.first_token_time = now
            request.result.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            found = output.prompt_logprobs
            request.result.prompt_logprobs = [None if entry is None else logprobs_dict(entry, self._tokenizer) for entry in found]


def _extend(result: CompletionOutput, event: TokenEvent) -> None:
    result.text += event.text
    result.token_ids += event.token_ids
    if event.logprobs is not None and result.logprobs is not None:
        result.logprobs += event.logprobs
        chosen = sum(found[token_id].logprob for token_id, found in zip(event.token_ids, event.logprobs, strict=True))
        result.cumulative_logprob = (result.cumulative_logprob or 0.0) + chosen
    if event.finish_reason is not None:
        result.finish_reason, result.stop_reason = event.finish_reason.value, event.stop_reason

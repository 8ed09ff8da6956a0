"""Responses in the order of their requests, where a model promises that (`preserve_ordering`)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from trivium.errors import TriviumError
from trivium.infer import InferResponse

if TYPE_CHECKING:
    from trivium.backends.tensor_inference import TensorInference


class Gate:
    """Lets answers out in the order in which requests came, whatever order they were computed in."""

    def __init__(self) -> None:
        self._held: dict[TensorInference, deque[InferResponse | TriviumError]] = {}

    def enter(self, inference: TensorInference) -> None:
        inference.gate = self
        self._held[inference] = deque()

    def put(self, inference: TensorInference, answer: InferResponse | TriviumError) -> None:
        self._held[inference].append(answer)
        self._release()

    def drop(self, inference: TensorInference) -> None:
        """It no longer keeps others waiting."""
        self._held.pop(inference, None)
        self._release()

    def _release(self) -> None:
        # One answer a turn: whoever gets it may cancel any request or send another.
        while self._held:
            first, answers = next(iter(self._held.items()))
            if not answers:
                return
            answer = answers.popleft()
            is_final = isinstance(answer, TriviumError) or answer.is_final
            if is_final:
                del self._held[first]
            if isinstance(answer, TriviumError):
                first.deliver_error(answer)
            else:
                first.deliver(answer)

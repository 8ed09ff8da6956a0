"""Requests that no client made: rows of sequences without one, and whatever else answers to nobody."""

from __future__ import annotations

from typing import Final

from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.backends.tensor_values import zeros_like
from trivium.batching.statistics import FailureReason
from trivium.errors import TriviumError
from trivium.infer import InferRequest, InferResponse


class _Nobody:
    """The owner of what answers to nobody."""

    def withdraw(self, inference: TensorInference) -> None: ...

    def reschedule(self, inference: TensorInference) -> None: ...

    def transform(self, inference: TensorInference, response: InferResponse) -> InferResponse:
        return response

    def on_response(self, inference: TensorInference, response: InferResponse) -> None: ...

    def on_end(self, inference: TensorInference, reason: FailureReason | None) -> None: ...


NOBODY: Final = _Nobody()


class NullInference(TensorInference):
    """Fills the row of a sequence that has no request: nobody reads its answer, nothing counts it."""

    __slots__ = ()

    def respond(self, response: InferResponse) -> None:
        if response.is_final:
            self.stage = Stage.ENDED

    def fail(self, error: TriviumError) -> None:
        self.stage = Stage.ENDED

    def reschedule(self) -> None:
        self.stage = Stage.ENDED


def null_inference(like: TensorInference) -> TensorInference:
    """A `NullInference` with inputs of the same names and shapes, all zeros."""
    request = InferRequest(model=like.original.model, version=like.original.version, inputs=[zeros_like(tensor) for tensor in like.original.inputs])
    return NullInference(NOBODY, request, arrival_ns=like.arrival_ns, batch_size=like.batch_size, shape_key=like.shape_key)

"""The interface between the service and a loaded version of a tensor model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trivium.batching.statistics import ModelStatistics
from trivium.errors import TriviumError
from trivium.infer import InferRequest, InferResponse, TensorSpec


@dataclass(frozen=True, kw_only=True)
class ModelSignature:
    """What a model takes and gives, as clients see it."""

    name: str
    version: int
    platform: str
    """Triton's name for the kind of model, as in `onnxruntime_onnx`, `python`, `ensemble`."""
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    is_decoupled: bool = False
    is_sequence: bool = False


class Inference(Protocol):
    """One request being answered: an async iterator of `InferResponse`s, one for a model that isn't decoupled.

    Closing, at any moment and any number of times, gives up the request: it leaves the queue, or its instance learns that nobody waits.
    """

    def __aiter__(self) -> Inference: ...

    async def __anext__(self) -> InferResponse:
        """Raises the `TriviumError` the request ended with."""
        ...

    async def aclose(self) -> None: ...

    def cancel(self) -> None:
        """What `aclose` does, for callers that can't wait."""
        ...

    def deliver_to(self, on_response: Callable[[InferResponse], None], on_error: Callable[[TriviumError], None]) -> None:
        """Instead of iterating: `on_response` gets each response as it comes, what came before at once; `on_error` the error it ends with.

        Neither is called after `cancel`. Done callbacks run after them.
        """
        ...

    def fail(self, error: TriviumError) -> None:
        """End it from outside: the consumer gets `error`."""
        ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Called once, when the request has ended, however it did."""
        ...


class TensorModel(Protocol):
    """One loaded version of a model."""

    @property
    def signature(self) -> ModelSignature: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def num_pending(self) -> int:
        """Requests that wait for an instance."""
        ...

    @property
    def statistics(self) -> ModelStatistics:
        """Live counters."""
        ...

    def infer(self, request: InferRequest) -> Inference:
        """Raises `InvalidRequest` for inputs that the signature refuses, `Overloaded` for a full queue, at once."""
        ...

    async def close(self) -> None:
        """Ends what is left with `NotReady` and stops every instance."""
        ...


class ModelCaller(Protocol):
    """How an ensemble, or a Python model in its worker, calls another model of the repository (Triton's BLS)."""

    def infer(self, request: InferRequest) -> Inference:
        """Raises `ModelNotFound`, `NotReady`, and what `TensorModel.infer` raises."""
        ...

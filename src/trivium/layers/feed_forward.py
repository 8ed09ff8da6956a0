"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trivium.arch.spec import FeedForwardSpec
from trivium.layers.base import BuildContext, Layer
from trivium.layers.linear import Linear, row_parallel, split_evenly, stacked
from trivium.ops.collective import PartialSum


@dataclass(frozen=True, slots=True)
class FeedForwardNames:
    """Checkpoint names, without `.weight`."""

    gate_up: Sequence[str]
    """Gate, up; or one name if the checkpoint keeps them stacked."""
    down: str


class FeedForward(Layer):
    """`down(act(gate(x)) * up(x))`, its intermediate dimension split over ranks."""

    def __init__(self, context: BuildContext, spec: FeedForwardSpec, names: FeedForwardNames, hidden_size: int, activation: str) -> None:
        parallel, size = context.parallel, spec.intermediate_size
        share = split_evenly(size, parallel.rank, parallel.size, "feed-forward size")
        self.gate_up: Linear = stacked(context, names.gate_up, [(size, share), (size, share)], hidden_size, bias=spec.bias)
        self.down: Linear = row_parallel(context, names.down, hidden_size, size, bias=spec.bias)
        self.activation = activation
        self.parallel = parallel

    def part(self, x: Tensor) -> Tensor:
        """x [T, hidden] → this rank's part [T, hidden]."""
        return self.down(self.gate_up.gated(x, self.activation))

    def __call__(self, x: Tensor) -> Tensor | PartialSum:
        """x [T, hidden] → [T, hidden]."""
        return self.parallel.sum_later(self.part(x))

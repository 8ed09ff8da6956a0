"""What a decoder layer has two of: blocks that read the normed residual stream and add to it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trivium.layers.base import Layer
from trivium.layers.norm import RMSNorm


class Block(Layer):
    """Attention or feed-forward."""

    def __call__(self, x: Tensor, *step: Any) -> Tensor:
        """x [T, hidden], normed → [T, hidden]; `step` is what the block needs to know of the step."""
        raise NotImplementedError

    def on_stream(self, norm: RMSNorm, pending: Tensor | None, residual: Tensor, *step: Any, may_add: bool) -> tuple[Tensor | None, Tensor]:
        """The block behind its norm: (what is still to be added to the stream, or None if it has been; the stream [T, hidden]).

        `pending` is the block before's: to be added to `residual` first. Without `may_add` the result must not be added here.
        Blocks that can fuse products with what surrounds them override this.
        """
        x, residual = (norm(residual), residual) if pending is None else norm.add(pending, residual)
        return self(x, *step), residual

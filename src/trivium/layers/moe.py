"""Mixture of experts: every rank has a slice of every expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trivium.arch.spec import FeedForwardSpec, MoeSpec
from trivium.layers.base import BuildContext, Layer, Slot
from trivium.layers.feed_forward import FeedForward, FeedForwardNames
from trivium.layers.linear import split_evenly
from trivium.ops.collective import PartialSum
from trivium.ops.linear import PackedWeight, try_pack_weight
from trivium.ops.moe import PackedExperts, fused_moe, select_experts, try_pack_experts


@dataclass(frozen=True, slots=True)
class MoeNames:
    """Checkpoint names, without `.weight`."""

    router: str
    expert: Callable[[int], tuple[str, str, str]]
    """Expert → gate, up, down."""
    shared: FeedForwardNames | None = None
    correction_bias: str = ""
    """Full name of the bias that takes part in choosing."""


class MixtureOfExperts(Layer):
    """Routed experts, and the shared ones if there are any."""

    def __init__(self, context: BuildContext, spec: MoeSpec, names: MoeNames, hidden_size: int, activation: str) -> None:
        parallel = context.parallel
        self.router = Router(context, spec, names, hidden_size)
        self.experts = Experts(context, spec, names, hidden_size)
        self.shared = None
        if spec.shared_intermediate_size:
            assert names.shared is not None
            shared = FeedForwardSpec(intermediate_size=spec.shared_intermediate_size)
            self.shared = FeedForward(context, shared, names.shared, hidden_size, activation)
        self.activation = activation
        self.parallel = parallel

    def __call__(self, x: Tensor) -> Tensor | PartialSum:
        """x [T, hidden] → [T, hidden]."""
        weights, ids = self.router(x)
        out = self.experts(x, weights, ids, self.activation)
        if self.shared is not None:
            out = out + self.shared.part(x)
        return self.parallel.sum_later(out)


class Router(Layer):
    """Scores experts. The same on every rank."""

    def __init__(self, context: BuildContext, spec: MoeSpec, names: MoeNames, hidden_size: int) -> None:
        self.names = names
        self.spec = spec.routing
        dtype = torch.float32 if spec.routing.float32 else context.dtype
        self.weight: Tensor | None = context.empty(spec.num_experts, hidden_size, dtype=dtype)
        self.dtype = dtype
        self.packed: PackedWeight | None = None
        self.correction_bias = context.empty(spec.num_experts, dtype=torch.float32) if spec.routing.correction_bias else None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, hidden] → weights [T, top_k] float32, ids [T, top_k] int32."""
        x = x.to(self.dtype)
        if self.packed is not None:
            return select_experts(self.packed(x, None), self.spec, self.correction_bias)
        assert self.weight is not None
        return select_experts(functional.linear(x, self.weight), self.spec, self.correction_bias)

    def finish(self) -> None:
        assert self.weight is not None
        self.packed = try_pack_weight(self.weight)
        if self.packed is not None:
            self.weight = None

    def nbytes(self) -> int:
        return super().nbytes() + (self.packed.nbytes if self.packed is not None else 0)

    def keeps_rows_apart(self) -> bool:
        return self.packed is not None and self.packed.keeps_rows_apart

    def slots(self) -> list[Slot]:
        assert self.weight is not None
        whole = (slice(None),)
        slots = [Slot(f"{self.names.router}.weight", tuple(self.weight.shape), ((whole, self.weight),))]
        if self.correction_bias is not None:
            slots.append(Slot(self.names.correction_bias, tuple(self.correction_bias.shape), ((whole, self.correction_bias),)))
        return slots


class Experts(Layer):
    """Weights of all experts: gate_up [E, 2F, H], down [E, H, F], where F is this rank's share of an expert."""

    def __init__(self, context: BuildContext, spec: MoeSpec, names: MoeNames, hidden_size: int) -> None:
        parallel, self.size = context.parallel, spec.intermediate_size
        self.share = split_evenly(self.size, parallel.rank, parallel.size, "expert size")
        width = self.share[1] - self.share[0]
        self.names = names
        self.gate_up: Tensor | None = context.empty(spec.num_experts, 2 * width, hidden_size)
        self.down: Tensor | None = context.empty(spec.num_experts, hidden_size, width)
        self.packed: PackedExperts | None = None

    def __call__(self, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, kind: str) -> Tensor:
        """x [T, hidden], topk_weights and topk_ids [T, top_k] → [T, hidden]."""
        if self.packed is not None:
            return self.packed(x, topk_weights, topk_ids, kind)
        assert self.gate_up is not None
        assert self.down is not None
        return fused_moe(x, self.gate_up, self.down, topk_weights, topk_ids, kind)

    def finish(self) -> None:
        assert self.gate_up is not None
        assert self.down is not None
        self.packed = try_pack_experts(self.gate_up, self.down)
        if self.packed is not None:
            self.gate_up = self.down = None

    def nbytes(self) -> int:
        return super().nbytes() + (self.packed.nbytes if self.packed is not None else 0)

    def keeps_rows_apart(self) -> bool:
        return self.packed is not None and self.packed.keeps_rows_apart

    def slots(self) -> list[Slot]:
        assert self.gate_up is not None
        assert self.down is not None
        num_experts, hidden, width = self.down.shape
        rows, slots = slice(*self.share), []
        for expert in range(num_experts):
            gate, up, down = self.names.expert(expert)
            slots.append(Slot(f"{gate}.weight", (self.size, hidden), (((rows,), self.gate_up[expert, :width]),)))
            slots.append(Slot(f"{up}.weight", (self.size, hidden), (((rows,), self.gate_up[expert, width:]),)))
            slots.append(Slot(f"{down}.weight", (hidden, self.size), (((slice(None), rows), self.down[expert]),)))
        return slots

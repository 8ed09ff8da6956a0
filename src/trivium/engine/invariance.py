"""Whether every request gets the same tokens, bit for bit, alone and in any batch; decided once, when the model is in place.

What it takes: products whose rows don't know of each other, attention whose partial sums are cut by a request's own positions only, and a
sampler that works row by row. The kernels for CPUs are made so, so that it costs nothing there and is on by default. On a GPU it is bought with
kernels of its own, when asked for; where there are none it is refused.
"""

from __future__ import annotations

from trivium.errors import ConfigError
from trivium.layers.base import Layer
from trivium.layers.embedding import VocabMatrix
from trivium.layers.linear import Linear, PlainLinear
from trivium.ops.attention.base import AttentionBackend
from trivium.ops.collective import ParallelContext


def attention_name(name: str, *, wanted: bool | None, device_type: str) -> str:
    """The attention back end to create when `name` is asked for: on a GPU batch invariance has its own."""
    return "invariant" if wanted and device_type == "cuda" and name in ("auto", "triton") else name


def check_batch_invariance(*, wanted: bool | None, attention: AttentionBackend, parallel: ParallelContext) -> None:
    """Before weights are loaded. Raises `ConfigError` if it is asked for and can't be had."""
    if wanted and (obstacle := _in_the_setup(attention, parallel)) is not None:
        raise _refusal(obstacle)


def keep_rows_apart(model: Layer) -> None:
    """Let the plain products of a model on a GPU be computed by kernels whose rows don't know of each other."""
    from trivium.ops.triton.invariant import InvariantWeight

    for _, layer in model.walk():
        if isinstance(layer, Linear) and isinstance(layer.method, PlainLinear) and layer.weight is not None:
            layer.packed, layer.weight = InvariantWeight(layer.weight), None
        elif isinstance(layer, VocabMatrix) and layer.is_head and layer.weight is not None:
            layer.packed = InvariantWeight(layer.weight)
            if not layer.is_embedding:
                layer.weight = None


def batch_invariance_note(*, wanted: bool | None, device_type: str, attention: AttentionBackend, parallel: ParallelContext, model: Layer) -> str:
    """What holds for this engine, as a line for people. Raises `ConfigError` if invariance is asked for and can't be had."""
    if device_type != "cpu" and not wanted:
        return f"batch_invariant: off, on {device_type} it costs speed and has to be asked for"
    obstacle = _in_the_setup(attention, parallel) or _in_the_model(model)
    if obstacle is None:
        on = "batch_invariant: on, it costs nothing here" if device_type == "cpu" else "batch_invariant: on"
        return on if wanted is not False else "batch_invariant: not asked for"
    if wanted:
        raise _refusal(obstacle)
    return f"batch_invariant: off, {obstacle}"


def _refusal(obstacle: str) -> ConfigError:
    return ConfigError(f"batch_invariant can't be had here: {obstacle}.", param="batch_invariant")


def _in_the_setup(attention: AttentionBackend, parallel: ParallelContext) -> str | None:
    if parallel.size > 1:
        return "sums over several ranks are added up in an order that depends on the batch"
    if not attention.is_batch_invariant:
        return f"the attention back end {attention.name} computes differently at different batch sizes"
    return None


def _in_the_model(model: Layer) -> str | None:
    for name, layer in model.walk():
        if not layer.keeps_rows_apart():
            return f"the weights of {name} are not of a type whose kernels on this device treat rows apart"
    return None

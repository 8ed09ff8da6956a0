"""Whether every request gets the same tokens, bit for bit, alone and in any batch; decided once, when the model is in place.

What it takes: products whose rows don't know of each other, attention whose partial sums are cut by a request's own positions only, and a
sampler that works row by row. The kernels for CPUs are made so, so that it costs nothing there and is on by default; elsewhere it has to be
bought with kernels of its own, and where there are none it is refused.
"""

from __future__ import annotations

from trivium.errors import ConfigError
from trivium.layers.base import Layer
from trivium.ops.attention.base import AttentionBackend
from trivium.ops.collective import ParallelContext


def check_batch_invariance(*, wanted: bool | None, device_type: str, attention: AttentionBackend, parallel: ParallelContext) -> None:
    """Before weights are loaded. Raises `ConfigError` if it is asked for and can't be had."""
    if wanted and (obstacle := _in_the_setup(device_type, attention, parallel)) is not None:
        raise _refusal(obstacle)


def batch_invariance_note(*, wanted: bool | None, device_type: str, attention: AttentionBackend, parallel: ParallelContext, model: Layer) -> str:
    """What holds for this engine, as a line for people. Raises `ConfigError` if invariance is asked for and can't be had."""
    obstacle = _in_the_setup(device_type, attention, parallel) or _in_the_model(model)
    if obstacle is None:
        return "batch_invariant: on, it costs nothing here" if wanted is not False else "batch_invariant: not asked for"
    if wanted:
        raise _refusal(obstacle)
    return f"batch_invariant: off, {obstacle}"


def _refusal(obstacle: str) -> ConfigError:
    return ConfigError(f"batch_invariant can't be had here: {obstacle}.", param="batch_invariant")


def _in_the_setup(device_type: str, attention: AttentionBackend, parallel: ParallelContext) -> str | None:
    if device_type != "cpu":
        return f"the products on {device_type} are computed differently at different batch sizes"
    if parallel.size > 1:
        return "sums over several ranks are added up in an order that depends on the batch"
    if not attention.is_batch_invariant:
        return f"the attention back end {attention.name} computes differently at different batch sizes"
    return None


def _in_the_model(model: Layer) -> str | None:
    for name, layer in model.walk():
        if not layer.keeps_rows_apart():
            return f"the weights of {name} are not of a type the CPU kernels take (float32, bfloat16)"
    return None

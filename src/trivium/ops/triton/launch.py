"""What all launches share: properties of the device, programmatic dependent launch, small arithmetic.

Programmatic dependent launch (PDL, Hopper and later) lets a kernel start while those before it in the stream still drain. The rule in this
package: a kernel launched so waits before it touches anything but weights. A wait ends when the kernel before has ended, which waited for the
one before it, and so on: so after it every earlier kernel has ended, however many had started. The trigger may then come first of all, and
programs of a product take a multiprocessor, and ask for their weights, as soon as the product two kernels before leaves it. They never
keep an earlier kernel from running: a kernel starts only when every program of the one before has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
_is_compiling: ContextVar[bool] = ContextVar("trivium_triton_compiles_only", default=False)
LOG2E = tl.constexpr(1.4426950408889634)


@cache
def num_sms(index: int | None = None) -> int:
    """Multiprocessors of the device; a small number in the interpreter, so that tests cross its boundaries."""
    return 4 if INTERPRETED else torch.cuda.get_device_properties(index if index is not None else torch.cuda.current_device()).multi_processor_count


@cache
def _has_pdl(index: int | None) -> bool:
    return not INTERPRETED and torch.cuda.get_device_capability(index) >= (9, 0)


def pdl(tensor: Tensor) -> dict[str, Any]:
    """Keyword arguments of a launch: the kernel's constexpr `PDL` and the launcher's option."""
    if _has_pdl(tensor.device.index):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def run(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """`kernel[grid]`: the one place where kernels of this package start, or only compile (see `compile_ahead`)."""
    return partial(kernel.warmup, grid=grid) if _is_compiling.get() else kernel[grid]


class _LaunchablePool(ThreadPoolExecutor):
    """Makes kernels ready to launch. The compiler is half of it: a kernel's launcher is a C file that Triton leaves to the C compiler at the first
    launch, one after the other, and its machine code is loaded then, too."""

    def submit(self, compile_kernel: Callable[[], Any], /) -> Future[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().submit(_compile_and_load, compile_kernel)


def _compile_and_load(compile_kernel: Callable[[], Any]) -> Any:
    kernel = compile_kernel()
    kernel.run  # noqa: B018 (a property that builds the launcher and loads the code)
    return kernel


@contextmanager
def compile_ahead() -> Iterator[None]:
    """Inside, launches only compile, all of them side by side on the machine's cores, so that a start-up waits for the slowest kernel and
    not for their sum. Outputs hold whatever memory held: nothing that indexes by them may run inside."""
    token = _is_compiling.set(True)
    device = torch.cuda.current_device()
    try:
        pool = _LaunchablePool(os.cpu_count(), initializer=torch.cuda.set_device, initargs=(device,))
        with pool, triton.AsyncCompileMode(pool, ignore_errors=True):
            yield
    finally:
        _is_compiling.reset(token)


def on_device(tensor: Tensor) -> Any:
    """Triton launches on the current device, which in a host of several engines need not be the tensor's."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


class ArrivalCounters:
    """int32 zeros for kernels whose last program to arrive finishes a tile; kernels leave them as they found them.

    Each weight has its own, so products of one model on one stream and of another model on another stream never share any. They are cut
    from slabs made outside of captures, since memory of a captured graph's pool is not ours to keep.
    """

    SLAB = 1 << 20

    def __init__(self) -> None:
        self._by_weight: dict[tuple[int, int | None], Tensor] = {}
        self._slabs: dict[int | None, tuple[Tensor, int]] = {}

    def for_weight(self, weight: Tensor, count: int) -> Tensor:
        """At least `count` counters, the same ones each time."""
        key = (weight.data_ptr(), weight.device.index)
        found = self._by_weight.get(key)
        if found is None or found.numel() < count:
            found = self._by_weight[key] = self._cut(weight.device, -(-count // 32) * 32)
        return found

    def _cut(self, device: torch.device, count: int) -> Tensor:
        slab, used = self._slabs.get(device.index, (None, 0))
        if slab is None or used + count > slab.numel():
            assert not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()), "run once before capturing a graph"
            slab, used = torch.zeros(max(self.SLAB, count), dtype=torch.int32, device=device), 0
        self._slabs[device.index] = (slab, used + count)
        return slab[used : used + count]


def next_pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@triton.jit
def wait(PDL: tl.constexpr):
    """Block until the kernel before has ended and its writes are visible."""
    if PDL:
        gdc_wait()


@triton.jit
def trigger(PDL: tl.constexpr):
    """Let the next kernel start, to wait in its turn."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_and_trigger(PDL: tl.constexpr):
    """Both; the trigger first, so that what the next kernel does before its own wait overlaps with more."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def block_ids(table, tile, end, TILE: tl.constexpr, PAGE: tl.constexpr):
    """int64 ids of the cache blocks of a tile of tokens: one if the tile lies in a block, else one a token; 0, which nobody owns, from
    token `end` on."""
    if PAGE >= TILE:
        return tl.load(table + tile * TILE // PAGE, mask=tile * TILE < end, other=0).to(tl.int64)
    else:  # noqa: RET505 (Triton compiles what follows a return, even one that always happens)
        tokens = tile * TILE + tl.arange(0, TILE)
        return tl.load(table + tokens // PAGE, mask=tokens < end, other=0).to(tl.int64)

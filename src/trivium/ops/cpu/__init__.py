"""Fast paths for the CPU: a small C++ library, compiled once for the CPU it runs on and called through `ctypes`.

`kernels/` is the C++; `build` compiles and caches it, `library` loads it, and the other modules check tensors and hand over pointers.
Without a compiler everything runs on torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def fast_paths() -> Mapping[str, Callable[..., Any]]:
    """See `trivium.ops.dispatch`. Empty where the library can't be built."""
    from trivium.ops.cpu import attention, decoder, elementwise, library, linear, moe, quantized

    if library.kernels() is None:
        return {}
    return {
        "rms_norm": elementwise.rms_norm,
        "add_rms_norm": elementwise.add_rms_norm,
        "act_and_mul": elementwise.act_and_mul,
        "prepare_qkv": elementwise.prepare_qkv,
        "pack_weight": linear.try_pack,
        "pack_int8_weight": linear.try_pack_int8,
        "pack_quantized": quantized.try_pack,
        "pack_experts": moe.try_pack_experts,
        "attention": attention.paged_attention,
        "fuse_layers": decoder.try_fuse,
    }

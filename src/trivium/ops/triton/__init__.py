"""Kernels in Triton's language: fast paths of `trivium.ops` for CUDA tensors.

`triton` is optional: nothing outside this package imports it, and this module doesn't either until `fast_paths()` is called. Every kernel
has its reference in plain torch beside the dispatcher in `trivium.ops`; `tests/unit/kernels` compares the two in Triton's interpreter on
a CPU, or on the GPU when there is one. No wrapper reads a device value on the host, so that all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch


@cache
def available() -> bool:
    """Whether kernels of this package can run on this machine's GPU."""
    return importlib.util.find_spec("triton") is not None and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def fast_paths() -> Mapping[str, Callable[..., Any]]:
    """Op name to its kernel, for `trivium.ops.dispatch`; empty where they can't run."""
    if not available():
        return {}
    from trivium.ops.attention.triton import create_backend
    from trivium.ops.triton import activation, latent, linear, moe, norm, qkv, quantized, routing

    return {
        "rms_norm": norm.rms_norm,
        "add_rms_norm": norm.add_rms_norm,
        "act_and_mul": activation.act_and_mul,
        "prepare_qkv": qkv.prepare_qkv,
        "prepare_mla": latent.prepare_mla,
        "linear": linear.linear,
        "gated_linear": linear.gated_linear,
        "select_experts": routing.select_experts,
        "fused_moe": moe.fused_moe,
        "pack_quantized": quantized.try_pack,
        "attention": create_backend,
    }

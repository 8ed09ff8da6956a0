"""Attention back ends by name, created lazily: a back end's libraries are imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch

from trivium.errors import ConfigError
from trivium.ops.attention.base import AttentionArgs, AttentionBackend, KVCache
from trivium.ops.dispatch import load_fast_paths

__all__ = ["BACKENDS", "AttentionArgs", "AttentionBackend", "KVCache", "create_attention_backend", "resolve_attention_backend"]

BACKENDS: dict[str, tuple[str, str]] = {
    "reference": ("trivium.ops.attention.reference", "any"),
    "cpu": ("trivium.ops.attention.cpu", "cpu"),
    "triton": ("trivium.ops.attention.triton", "cuda"),
    "flash": ("trivium.ops.attention.flash", "cuda"),
    "invariant": ("trivium.ops.attention.invariant", "cuda"),
}
"""Name to (module with a `create_backend(device)` function, type of device it runs on)."""


def create_attention_backend(name: str, device: torch.device | str) -> AttentionBackend:
    """`name` as in `EngineConfig.attention_backend`. Raises `ConfigError` for a name that is unknown or doesn't run on the device."""
    device = torch.device(device)
    name = resolve_attention_backend(name, device)
    if name not in BACKENDS:
        raise ConfigError(f"Unknown attention_backend {name!r}; there are: auto, {', '.join(BACKENDS)}.", param="attention_backend")
    module, device_type = BACKENDS[name]
    if device_type not in ("any", device.type):
        raise ConfigError(f"attention_backend {name!r} runs on {device_type}, not on {device.type}.", param="attention_backend")
    create: Callable[[torch.device], AttentionBackend] = import_module(module).create_backend
    return create(device)


def resolve_attention_backend(name: str, device: torch.device) -> str:
    """What "auto" means on this device: its own back end where its fast paths are available, else the reference."""
    if name != "auto":
        return name
    if not load_fast_paths(device.type):
        return "reference"
    if device.type == "cuda" and import_module(BACKENDS["flash"][0]).is_default():
        return "flash"
    return next(backend for backend, (_, device_type) in BACKENDS.items() if device_type == device.type)

"""What a network is made of, read from a Hugging Face `config.json` without torch. The planner, the models and the engine use it."""

from __future__ import annotations

from trivium.arch.rope import RopeSpec
from trivium.arch.spec import AttentionSpec, FeedForwardSpec, KVLayerSpec, LayerSpec, MlaSpec, ModelSpec, MoeSpec, RoutingSpec

__all__ = [
    "AttentionSpec",
    "FeedForwardSpec",
    "KVLayerSpec",
    "LayerSpec",
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "RopeSpec",
    "RoutingSpec",
]

"""DeepSeek-V2 and V3: MLA's projections, routed and shared experts. V3 checkpoints append layers that predict further tokens; not used."""

from __future__ import annotations

from dataclasses import replace

from trivium.arch.spec import ModelSpec
from trivium.layers.mla import MlaNames
from trivium.layers.moe import MoeNames
from trivium.models.layout import LayerNames, Layout, feed_forward_names
from trivium.models.llama import layer_names as llama_names
from trivium.models.qwen3_moe import expert_names


def create_layout(spec: ModelSpec) -> Layout:
    extra = tuple(rf"model\.layers\.{spec.num_layers + index}\..*" for index in range(spec.num_extra_layers))
    return Layout(layer=_layer_names, ignored=extra)


def _layer_names(layer: int) -> LayerNames:
    prefix = f"model.layers.{layer}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return replace(
        llama_names(layer),
        attention=MlaNames(
            query=f"{attention}.q_proj",
            query_down=f"{attention}.q_a_proj",
            query_norm=f"{attention}.q_a_layernorm",
            query_up=f"{attention}.q_b_proj",
            latent_down=f"{attention}.kv_a_proj_with_mqa",
            latent_norm=f"{attention}.kv_a_layernorm",
            latent_up=f"{attention}.kv_b_proj",
            output=f"{attention}.o_proj",
        ),
        moe=MoeNames(
            router=f"{mlp}.gate",
            expert=lambda index: expert_names(mlp, index),
            shared=feed_forward_names(f"{mlp}.shared_experts"),
            correction_bias=f"{mlp}.gate.e_score_correction_bias",
        ),
    )

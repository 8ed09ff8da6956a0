"""Every switch of a spec matters on the test checkpoints: flipped, the logits differ, or the checkpoint no longer fits.

That is what makes the parity tests worth something: a switch that is read wrongly can't pass them.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers_checkpoints import BY_NAME, VOCAB, checkpoint
from helpers_harness import PagedHarness

from trivium.arch import AttentionSpec, FeedForwardSpec, LayerSpec, MlaSpec, ModelSpec, MoeSpec, RopeSpec, RoutingSpec
from trivium.errors import WeightError

Flip = Callable[[ModelSpec], ModelSpec]


def _per_layer(part: str, change: Callable[[Any], Any]) -> Flip:
    def flip(spec: ModelSpec) -> ModelSpec:
        layers = tuple(replace(layer, **{part: change(getattr(layer, part))}) for layer in spec.layers)
        return replace(spec, layers=layers)

    return flip


def attention(**changes: Any) -> Flip:
    """Values may be functions of the old value. A window is changed only where there is one."""
    return _per_layer("attention", lambda old: _changed(old, changes))


def rope(**changes: Any) -> Flip:
    return _per_layer("attention", lambda old: replace(old, rope=_changed(old.rope, changes)))


def feed_forward(**changes: Any) -> Flip:
    return _per_layer("feed_forward", lambda old: _changed(old, changes) if isinstance(old, FeedForwardSpec) else old)


def moe(**changes: Any) -> Flip:
    return _per_layer("feed_forward", lambda old: _changed(old, changes) if isinstance(old, MoeSpec) else old)


def routing(**changes: Any) -> Flip:
    return moe(routing=lambda old: _changed(old, changes))


def model(**changes: Any) -> Flip:
    return lambda spec: _changed(spec, changes)


def _changed(old: Any, changes: dict[str, Any]) -> Any:
    return replace(old, **{key: change(getattr(old, key)) if callable(change) else change for key, change in changes.items()})


def _window(change: int) -> Callable[[int | None], int | None]:
    return lambda window: window + change if window else None


def _swap_windows(spec: ModelSpec) -> ModelSpec:
    """Which layers have the window."""
    window = next(layer.attention.window for layer in spec.layers if layer.attention.window)
    layers = tuple(replace(x, attention=replace(x.attention, window=None if x.attention.window else window)) for x in spec.layers)
    return replace(spec, layers=layers)


def _swap_ropes(spec: ModelSpec) -> ModelSpec:
    """Gemma 3: local and global rotation."""
    first, other = list(dict.fromkeys(layer.attention.rope for layer in spec.layers))
    layers = tuple(replace(x, attention=replace(x.attention, rope=other if x.attention.rope == first else first)) for x in spec.layers)
    return replace(spec, layers=layers)


def _moe_layers(spec: ModelSpec) -> ModelSpec:
    """Which layers have experts."""
    kinds = [layer.feed_forward for layer in spec.layers]
    return replace(spec, layers=tuple(replace(layer, feed_forward=kind) for layer, kind in zip(spec.layers, kinds[1:] + kinds[:1], strict=True)))


HALF = 0.5
FLIPS: list[tuple[str, Flip, tuple[str, ...]]] = [
    ("window off", attention(window=None), ("mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral")),
    ("window one longer", attention(window=_window(1)), ("mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral")),
    ("window one shorter", attention(window=_window(-1)), ("mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral")),
    ("windows on the other layers", _swap_windows, ("qwen2", "qwen3", "gemma2", "gemma3")),
    ("scale", attention(scale=lambda scale: scale * 1.1), ("llama", "gemma2", "gemma3", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3")),
    ("score soft-cap", attention(softcap=None), ("gemma2",)),
    ("qkv bias", attention(qkv_bias=lambda old: not old), ("llama", "llama-bias", "qwen2", "qwen3-bias", "mistral")),
    ("output bias", attention(output_bias=lambda old: not old), ("llama-bias", "qwen2", "qwen3-bias")),
    ("QK norm", attention(qk_norm=lambda old: not old), ("llama", "qwen2", "qwen3", "gemma3", "qwen3-moe")),
    ("query heads", attention(num_heads=2), ("llama", "deepseek-v3")),
    ("key-value heads", attention(num_kv_heads=4), ("llama", "phi3")),
    ("head dimension", attention(head_dim=8), ("llama", "qwen3")),
    ("query compression", attention(q_lora_rank=None), ("deepseek-v2",)),
    ("latent size", attention(kv_lora_rank=16), ("deepseek-v2",)),
    ("unrotated part", attention(nope_dim=8), ("deepseek-v2",)),
    ("rotated part", attention(rope_dim=4), ("deepseek-v2",)),
    ("value size", attention(value_dim=16), ("deepseek-v2",)),
    ("latent bias", attention(bias=lambda old: not old), ("deepseek-v2", "deepseek-v3-halves")),
    ("rope kind", rope(kind="default"), ("llama3", "llama-linear", "llama-yarn", "phi3-long", "phi3-short", "deepseek-v2-lite", "deepseek-v3")),
    ("rope base", rope(theta=lambda theta: theta * 1.5), ("llama", "llama-dynamic", "gemma2", "gemma3", "mixtral", "deepseek-v2")),
    ("rope factor", rope(factor=lambda factor: factor * 1.5), ("llama3", "llama-linear", "llama-yarn", "deepseek-v3")),
    ("rope attention factor", rope(attention_factor=1.0), ("llama-yarn", "phi3-long", "deepseek-v3")),
    ("rope original length", rope(original_max_len=lambda length: length // 4), ("llama3", "llama-yarn", "deepseek-v3")),
    ("low frequency factor", rope(low_freq_factor=2.0), ("llama3",)),
    ("high frequency factor", rope(high_freq_factor=8.0), ("llama3",)),
    ("beta fast", rope(beta_fast=1.5), ("llama-yarn",)),
    ("beta slow", rope(beta_slow=3.0), ("llama-yarn",)),
    ("ramp truncation", rope(truncate=False), ("llama-yarn",)),
    ("long factors", rope(divisors=lambda old: old[::-1]), ("phi3-long", "phi3-short")),
    ("rotary dimension", rope(rotary_dim=lambda dim: dim // 2), ("llama", "phi3")),
    ("rotary pairs", rope(interleaved=lambda old: not old), ("llama", "deepseek-v2", "deepseek-v3", "deepseek-v3-halves")),
    ("local and global rope", _swap_ropes, ("gemma3",)),
    ("feed-forward bias", feed_forward(bias=lambda old: not old), ("llama", "llama-bias")),
    ("feed-forward size", feed_forward(intermediate_size=64), ("llama", "phi3")),
    ("expert size", moe(intermediate_size=16), ("mixtral", "deepseek-v3")),
    ("number of experts", moe(num_experts=4), ("mixtral", "qwen3-moe", "deepseek-v3")),
    ("shared experts", moe(shared_intermediate_size=0), ("deepseek-v2", "deepseek-v3")),
    ("layers with experts", _moe_layers, ("qwen3-moe", "deepseek-v3")),
    ("experts per token", routing(top_k=lambda k: k - 1), ("mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3")),
    ("scoring", routing(scoring=lambda old: "sigmoid" if old == "softmax" else "softmax"), ("qwen3-moe", "deepseek-v2", "deepseek-v3")),
    ("normalized weights", routing(normalize=lambda old: not old), ("mixtral", "qwen3-moe", "qwen3-moe-unnormed", "deepseek-v3")),
    ("routed scale", routing(scale=1.0), ("deepseek-v2", "deepseek-v3")),
    ("expert groups", routing(num_groups=1, top_groups=1), ("deepseek-v2", "deepseek-v3")),
    ("open groups", routing(top_groups=lambda old: old + 1), ("deepseek-v2", "deepseek-v3")),
    ("group score", routing(group_score=lambda old: "max" if old == "top2_sum" else "top2_sum"), ("deepseek-v2", "deepseek-v3")),
    ("correction bias", routing(correction_bias=lambda old: not old), ("deepseek-v2", "deepseek-v3")),
    ("activation", model(activation=lambda old: "gelu_tanh" if old == "silu" else "silu"), ("llama", "llama-bias", "gemma2", "mixtral")),
    ("norm offset", model(norm_offset=lambda old: 1.0 - old), ("llama", "qwen3", "gemma2", "gemma3")),
    ("norm epsilon", model(norm_eps=0.05), ("llama", "gemma2", "phi3", "deepseek-v3")),
    ("norms after blocks", model(post_norms=False), ("gemma2", "gemma3")),
    ("tied head", model(tie_embeddings=lambda old: not old), ("llama", "llama3", "gemma3", "qwen2-full")),
    ("embedding scale", model(embed_scale=None), ("gemma2", "gemma3")),
    ("logit soft-cap", model(final_softcap=None), ("gemma2",)),
    ("vocabulary", model(vocab_size=VOCAB - 1), ("llama",)),
    ("hidden size", model(hidden_size=32), ("llama",)),
    ("number of layers", model(layers=lambda layers: layers[:-1]), ("llama", "deepseek-v3")),
]  # fmt: skip

NOT_COMPUTED = {
    "architecture": "a name",
    "weight_layout": "chooses tensor names: any other finds nothing",
    "max_position_embeddings": "a limit",
    "max_model_len": "a limit; its effect on the rope is in the RopeSpec",
    "torch_dtype": "the caller's choice of dtype",
    "quantization": "refused at load",
    "num_extra_layers": "tensors that are not loaded",
    "rope": "the fields of RopeSpec",
    "routing": "the fields of RoutingSpec",
    "float32": "the checkpoints are float32",
    "attention": "the fields of AttentionSpec and MlaSpec",
    "feed_forward": "the fields of FeedForwardSpec and MoeSpec",
}


@pytest.mark.parametrize(("flip", "case"), [pytest.param(flip, case, id=f"{name}-{case}") for name, flip, cases in FLIPS for case in cases])
def test_a_flipped_switch_shows(flip: Flip, case: str) -> None:
    point = checkpoint(case)
    spec = ModelSpec.from_config(point.config, max_model_len=BY_NAME[case].max_model_len)
    flipped = flip(spec)
    assert flipped != spec
    generator = random.Random(7)
    tokens = [generator.randrange(VOCAB - 1) for _ in range(200)]
    expected = point.logits(tokens)
    try:
        actual = PagedHarness(flipped, point.tensors).logits(tokens)
    except WeightError:
        return
    assert (actual - expected[:, : actual.shape[1]]).abs().max() > 1e-2


def test_every_field_of_a_spec_has_a_flip() -> None:
    flipped = _flipped_fields()
    for spec in (ModelSpec, LayerSpec, AttentionSpec, MlaSpec, FeedForwardSpec, MoeSpec, RoutingSpec, RopeSpec):
        for field in dataclasses.fields(spec):
            assert field.name in flipped or field.name in NOT_COMPUTED, f"{spec.__name__}.{field.name}"


def _flipped_fields() -> set[str]:
    """Names of fields that some flip changes, found by applying each to its first case."""
    found: set[str] = set()
    for _, flip, cases in FLIPS:
        spec = ModelSpec.from_config(checkpoint(cases[0]).config, max_model_len=BY_NAME[cases[0]].max_model_len)
        found |= _differences(spec, flip(spec))
    return found


def _differences(left: Any, right: Any) -> set[str]:
    found: set[str] = set()
    for field in dataclasses.fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if a == b:
            continue
        pairs = list(zip(a, b, strict=False)) if isinstance(a, tuple) and dataclasses.is_dataclass(a[0]) else [(a, b)]
        nested = [(x, y) for x, y in pairs if dataclasses.is_dataclass(x) and type(x) is type(y)]
        found.add(field.name)
        for x, y in nested:
            found |= _differences(x, y)
    return found

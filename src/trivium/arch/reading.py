"""One `config.json` being turned into a `ModelSpec`: what every family asks it for, and the pattern most of them follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.arch.quantization_config import read_quantization
from trivium.arch.reader import ConfigReader
from trivium.arch.rope import RopeSource
from trivium.arch.spec import ActivationName, AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec, RoutingSpec
from trivium.errors import ConfigError, ModelLoadError

ACTIVATIONS: dict[str, ActivationName] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu"}

MAX_LAYERS = 10_000
"""A config that claims more is broken, and would be turned into a tuple of as many specs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One config being read, with what every family asks it for."""

    config: ConfigReader
    architecture: str
    requested_len: int | None
    """`max_model_len` as asked for."""

    @property
    def num_layers(self) -> int:
        return self.config.integer("num_hidden_layers", maximum=MAX_LAYERS)

    @property
    def hidden_size(self) -> int:
        return self.config.integer("hidden_size")

    def max_model_len(self, declared: int) -> int:
        if self.requested_len is None:
            return declared
        if not 1 <= self.requested_len <= declared:
            raise ConfigError(f"max_model_len {self.requested_len} is not within 1..{declared}, which the model declares.", param="max_model_len")
        return self.requested_len

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, head dimension."""
        config = self.config
        num_heads = config.integer("num_attention_heads")
        num_kv_heads = config.integer("num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise config.error("num_key_value_heads", f"must divide num_attention_heads ({num_heads}).")
        if not config.has("head_dim") and self.hidden_size % num_heads:
            raise config.error("hidden_size", f"must be a multiple of num_attention_heads ({num_heads}) where head_dim is not given.")
        return num_heads, num_kv_heads, config.integer("head_dim", default=self.hidden_size // num_heads)

    def activation(self, key: str = "hidden_act") -> ActivationName:
        name = self.config.text(key)
        if name not in ACTIVATIONS:
            raise ModelLoadError(f"{self.config.where}: {key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}.")
        return ACTIVATIONS[name]

    def windows(self, layer_types: tuple[str, ...] | None) -> tuple[int | None, ...]:
        """Per layer: `sliding_window` on the sliding ones; on all of them if the config has no `layer_types`."""
        window = self.config.integer_or_none("sliding_window")
        if layer_types is None:
            return (window,) * self.num_layers
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)

    def layer_types(self) -> tuple[str, ...] | None:
        if not self.config.has("layer_types"):
            return None
        types = self.config.texts("layer_types")
        if len(types) != self.num_layers:
            raise self.config.error("layer_types", f"one entry for each of the {self.num_layers} layers expected.")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise self.config.error("layer_types", f"{kind!r} is not supported.")
        return types

    def spec(self, declared_len: int, layers: tuple[LayerSpec, ...], *, layout: str, activation: ActivationName, **flags: Any) -> ModelSpec:
        config = self.config
        return ModelSpec(
            architecture=self.architecture,
            weight_layout=layout,
            vocab_size=config.integer("vocab_size"),
            hidden_size=self.hidden_size,
            layers=layers,
            activation=activation,
            norm_eps=config.positive("rms_norm_eps"),
            tie_embeddings=config.flag("tie_word_embeddings", default=False),
            max_position_embeddings=declared_len,
            max_model_len=self.max_model_len(declared_len),
            torch_dtype=config.text("dtype", default=config.text("torch_dtype", default="")) or None,
            quantization=read_quantization(config),
            **flags,
        )


def dense_spec(
    reading: Reading,
    *,
    layout: str = "llama",
    windows: tuple[int | None, ...] | None = None,
    feed_forwards: tuple[FeedForwardSpec | MoeSpec, ...] | None = None,
    mlp_bias: bool = False,
    rope: RopeSource | None = None,
    **attention: bool,
) -> ModelSpec:
    """The Llama pattern: `attention` has AttentionSpec's flags; the rest differs by layer."""
    source = rope or RopeSource.read(reading.config)
    num_heads, num_kv_heads, head_dim = reading.heads()
    resolved = source.resolve(head_dim, reading.max_model_len(source.declared_len))
    windows = windows or (None,) * reading.num_layers
    if feed_forwards is None:
        feed_forwards = (FeedForwardSpec(intermediate_size=reading.config.integer("intermediate_size"), bias=mlp_bias),) * reading.num_layers
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                rope=resolved,
                window=window,
                **attention,
            ),
            feed_forward=feed_forward,
        )
        for window, feed_forward in zip(windows, feed_forwards, strict=True)
    )
    return reading.spec(source.declared_len, layers, layout=layout, activation=reading.activation())


def read_routing(reading: Reading, num_experts: int, **flags: Any) -> RoutingSpec:
    top_k = reading.config.integer("num_experts_per_tok")
    if top_k > num_experts:
        raise reading.config.error("num_experts_per_tok", f"there are only {num_experts} experts.")
    return RoutingSpec(top_k=top_k, **flags)

"""`trivium show MODEL`: what a model is, from its config alone."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from trivium.arch import KVLayerSpec, MlaSpec, ModelSpec, MoeSpec
from trivium.backends.llm_params import sampling_defaults
from trivium.cli.hub_option import hub_option
from trivium.cli.pull import weight_bytes
from trivium.cli.terminal import format_bytes
from trivium.errors import ConfigError
from trivium.sources import ModelFiles, resolve
from trivium.sources.gguf_file import read_gguf

KV_ITEMSIZE: Final = 2
"""Bytes of one cached number in 16-bit types."""

WEIGHT_ITEMSIZE: Final = 2
"""Bytes of one loaded weight in 16-bit types."""


def describe(files: ModelFiles, spec: ModelSpec) -> dict[str, Any]:
    """Facts by name; sizes in bytes, lengths in tokens."""
    first = spec.layers[0]
    attention = (
        "latent (MLA)" if isinstance(first.attention, MlaSpec) else f"{first.attention.num_heads} heads, {first.attention.num_kv_heads} for KV"
    )
    experts = max((layer.feed_forward.num_experts for layer in spec.layers if isinstance(layer.feed_forward, MoeSpec)), default=0)
    windows = sorted({kv.window for kv in spec.kv_layers if kv.window is not None})
    per_token = spec.kv_bytes_per_token(KV_ITEMSIZE)
    return {
        "name": files.name,
        "path": str(files.path),
        "kind": files.kind,
        "architecture": spec.architecture,
        "parameters": spec.num_params,
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "attention": attention,
        "experts": experts,
        "windows": windows,
        "vocabulary": spec.vocab_size,
        "context_length": spec.max_position_embeddings,
        "dtype": spec.torch_dtype,
        "quantization": None if spec.quantization is None else spec.quantization.method,
        "file_type": _file_type(files),
        "weight_bytes": weight_bytes(files),
        "loaded_bytes": None if spec.quantization else WEIGHT_ITEMSIZE * spec.num_params,
        "kv_bytes_per_token": per_token,
        "kv_bytes_full_context": sum(_kv_bytes(kv, spec.max_position_embeddings) for kv in spec.kv_layers),
        "generation_defaults": sampling_defaults(files.generation_config, {}),
    }


def _file_type(files: ModelFiles) -> str | None:
    """The type that most bytes of a .gguf file have, such as Q4_1."""
    if files.kind != "gguf":
        return None
    sizes: dict[str, int] = {}
    for path in files.weight_files:
        for tensor in read_gguf(path).tensors.values():
            sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.num_bytes
    return max(sizes, key=lambda name: sizes[name], default=None)


def _format_count(count: int) -> str:
    """In the unit that leaves at least one digit before the point."""
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,}"


def _weights(facts: dict[str, Any]) -> str:
    kind = facts["file_type"] or facts["quantization"] or facts["dtype"] or "dtype not declared"
    text = f"{format_bytes(facts['weight_bytes'])}, {facts['kind']}, {kind}"
    return text if facts["loaded_bytes"] is None else f"{text}; {format_bytes(facts['loaded_bytes'])} in memory in 16 bit"


def _kv_bytes(layer: KVLayerSpec, num_tokens: int) -> int:
    return KV_ITEMSIZE * layer.elements_per_token * num_tokens


def render(facts: dict[str, Any]) -> str:
    """The facts for people, one a line."""
    lines = [
        ("model", facts["name"]),
        ("path", facts["path"]),
        ("architecture", facts["architecture"]),
        ("parameters", _format_count(facts["parameters"])),
        ("layers", f"{facts['layers']} of width {facts['hidden_size']}, {facts['attention']}"),
        ("experts", facts["experts"] or None),
        ("sliding window", ", ".join(map(str, facts["windows"])) or None),
        ("vocabulary", f"{facts['vocabulary']:,} tokens"),
        ("context", f"{facts['context_length']:,} tokens"),
        ("weights", _weights(facts)),
        (
            "KV cache",
            f"{format_bytes(facts['kv_bytes_per_token'])} a token in 16 bit, {format_bytes(facts['kv_bytes_full_context'])} for one full context",
        ),
        ("sampling", json.dumps(facts["generation_defaults"]) if facts["generation_defaults"] else None),
    ]
    return "\n".join(f"{name:<15}{text}" for name, text in lines if text is not None)


@click.command(name="show", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", default="")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@hub_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(*, model: str, revision: str | None, hub: str, as_json: bool) -> None:
    """What MODEL is and what it needs; nothing is loaded. Without MODEL: the packaged one."""
    if revision is not None and not model:
        raise ConfigError("The packaged model has no revisions; --revision needs the name of a hub model.", param="revision")
    files = resolve(model, revision, with_weights=False, hub=hub)
    facts = describe(files, ModelSpec.from_config(files.config))
    click.echo(json.dumps(facts, indent=2) if as_json else render(facts))

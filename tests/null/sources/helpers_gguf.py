"""Writes GGUF files for tests, after the format's description and independent of our reader."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TYPES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f")}
TYPES |= {"bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


@dataclass
class TensorSpec:
    """`shape` in torch's order; `data` as it lies in the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    data: bytes


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any, kind: str | None = None) -> bytes:
    """Type number and value; the kind is guessed from Python's type unless given."""
    if isinstance(value, list):
        return struct.pack("<I", ARRAY) + array(value, kind)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    number, layout = TYPES[kind or guessed(value)]
    return struct.pack("<I", number) + struct.pack(layout, value)


def array(values: list[Any], kind: str | None) -> bytes:
    if values and isinstance(values[0], str):
        return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))
    number, layout = TYPES[kind or guessed(values[0] if values else 0)]
    return struct.pack("<IQ", number, len(values)) + b"".join(struct.pack(layout, value) for value in values)


def guessed(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "u32" if value >= 0 else "i32"


def gguf_bytes(
    metadata: dict[str, Any] | list[tuple[str, Any]], tensors: list[TensorSpec] | None = None, *, version: int = 3, padding: int = ALIGNMENT
) -> bytes:
    """`metadata` values may be `(kind, value)` to choose the type."""
    pairs = list(metadata.items()) if isinstance(metadata, dict) else metadata
    tensors = tensors or []
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(pairs))]
    for key, value in pairs:
        out.append(text(key) + (typed(value[1], value[0]) if isinstance(value, tuple) else typed(value)))
    offset = 0
    for tensor in tensors:
        out.append(text(tensor.name) + struct.pack("<I", len(tensor.shape)))
        out.append(b"".join(struct.pack("<Q", dim) for dim in reversed(tensor.shape)) + struct.pack("<IQ", tensor.type_id, offset))
        offset += -(-len(tensor.data) // padding) * padding
    header = b"".join(out)
    body = [padded(header, padding), *(padded(tensor.data, padding) for tensor in tensors)]
    return b"".join(body)


def padded(raw: bytes, padding: int) -> bytes:
    return raw + bytes(-len(raw) % padding)


def write_gguf(path: Path, metadata: dict[str, Any], tensors: list[TensorSpec] | None = None) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def f32_tensor(name: str, shape: tuple[int, ...], values: list[float]) -> TensorSpec:
    return TensorSpec(name, shape, 0, struct.pack(f"<{len(values)}f", *values))


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """A complete small model of the plainest kind; `changes` replace or add keys, None removes one."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": 40,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}

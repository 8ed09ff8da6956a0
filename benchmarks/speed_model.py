"""Model folders without weights, for speed runs on dummy weights: a config.json in the shape of a real model, and a tokenizer of its size."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-70b": {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "use_sliding_window": False,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "torch_dtype": "bfloat16",
    },
    "small": {**LLAMA, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}


NUM_TEXT_TOKENS = 128_000


def make_speed_model(folder: Path, shape: str) -> Path:
    """Writes `folder/shape` and returns it. Raises KeyError for an unknown shape."""
    target = folder / shape
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[shape], indent=2))
    (target / "tokenizer.json").write_text(json.dumps(make_tokenizer(SHAPES[shape]["vocab_size"])))
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|special_1|>"}))
    return target


def make_tokenizer(vocab_size: int) -> dict[str, Any]:
    """A byte-level BPE that is built, not trained: the 256 bytes, every pair of bytes, then triples, then special tokens up to `vocab_size`."""
    # Byte-level BPE shows unprintable bytes as the characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    symbols = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    vocab = {symbol: index for index, symbol in enumerate(symbols)}
    merges: list[tuple[str, str]] = []
    pairs = [(left, right) for left in symbols for right in symbols]
    triples = ((left + right, third) for left, right in pairs for third in symbols)
    for left, right in [*pairs, *itertools.islice(triples, NUM_TEXT_TOKENS - 256 - len(pairs))]:
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    special = [
        {
            "id": index,
            "content": f"<|special_{index - NUM_TEXT_TOKENS}|>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index in range(NUM_TEXT_TOKENS, vocab_size)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": [f"{left} {right}" for left, right in merges], "byte_fallback": False, "ignore_merges": False}
    return {"version": "1.0", "added_tokens": special, "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}

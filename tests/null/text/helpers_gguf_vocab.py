"""Metadata of small GGUF vocabularies, byte-level and SentencePiece."""

from __future__ import annotations

from typing import Any

from helpers_llamacpp import byte_spelling

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
WORDS = ["he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "ld", "Ġworld", "12", "123"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "12 3"]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<|end|>", "<|user|>", *byte_spelling(), *WORDS]
    types = [CONTROL, USER, *[NORMAL] * (256 + len(WORDS))]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": ("i32", types),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": 0,
    }
    metadata |= {"tokenizer.ggml." + key: value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "hell", "▁hello", "hello", "▁w", "▁world", "or", "▁wor", "ld", "你", "lo"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<mark>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces) + 1)],
        "tokenizer.ggml.token_type": ("i32", types),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    metadata |= {"tokenizer.ggml." + key: value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}

"""A tokenizer as wide as the test checkpoints: printable ASCII, some longer tokens, one end token."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from helpers_checkpoints import VOCAB
from tokenizers import decoders, models, pre_tokenizers

EOS_ID = VOCAB - 1
LONGER = ('{"', '":', '",', '"}', "ab", "abc", "-1", "00", "--", 'a"')
TEXTS = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ", *LONGER]


def tokenizer_folder(folder: Path) -> Path:
    """Writes it. Ids between the texts and the end token belong to nobody."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={text: token_id for token_id, text in enumerate(TEXTS)} | {"<|eos|>": EOS_ID}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>"}))
    return folder


def decoded(token_ids: list[int]) -> str:
    assert all(token_id < len(TEXTS) for token_id in token_ids)
    return "".join(TEXTS[token_id] for token_id in token_ids).replace("Ġ", " ")

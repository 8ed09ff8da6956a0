"""Small tokenizers of each kind, made in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from trivium.text import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris.",
    "你好，世界。今天天气很好，我们去公园吧。",
    "မြန်မာဘာသာစကားသည် မြန်မာနိုင်ငံ၏ ရုံးသုံးဘာသာစကား ဖြစ်သည်။",
    "def main():\n    print('hello', 42)\n",
]
SAMPLES = [
    "Hello world, it's 2024!",
    "你好，世界。今天天气很好",
    "မြန်မာဘာသာစကား",
    "👩‍👩‍👧‍👦 family 🇩🇪 flag 😀",
    "mixed 中文 and မြန် and 🎉\n\tend",
    "é e\u0301 \ufffd kept",
]


def byte_level_backend(vocab_size: int = 350) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=special, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_level_tokenizer(vocab_size: int = 350) -> Tokenizer:
    return Tokenizer(byte_level_backend(vocab_size), bos_token="<s>", eos_token="</s>")


PIECES = ["▁", "▁he", "llo", "▁world", "he", "l", "o", "w", "r", "d", "h", "e", "▁hello", "你", "<tag>"]


def sentencepiece_backend(*, prefix: bool = True) -> tokenizers.Tokenizer:
    """Byte fallback as Llama 2 has it: most of Unicode is spelled in `<0xNN>` tokens."""
    specials = ["<unk>", "<s>", "</s>"]
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocab = {name: token_id for token_id, name in enumerate(names)}
    merges = [("h", "e"), ("▁", "he"), ("l", "l"), ("ll", "o"), ("▁he", "llo")]
    vocab["ll"] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], pair=["<s>", "$A", "$B"], special_tokens=[("<s>", 1)])
    return backend


def sentencepiece_tokenizer(*, prefix: bool = True) -> Tokenizer:
    return Tokenizer(sentencepiece_backend(prefix=prefix), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def window_tokenizer() -> Tokenizer:
    """SentencePiece pieces with a decoder that we don't know: text is found by decoding windows."""
    backend = sentencepiece_backend()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return Tokenizer(backend)


def word_tokenizer() -> Tokenizer:
    """WordPiece: the text of a token depends on its neighbours, so its bytes are not known."""
    names = ["[UNK]", "[CLS]", "[SEP]", "hello", "##ing", "world", "run", "##s", ",", "!"]
    backend = tokenizers.Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    return Tokenizer(backend)


def write_folder(folder: Path, backend: tokenizers.Tokenizer, *, config: dict[str, Any] | None = None, special: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder

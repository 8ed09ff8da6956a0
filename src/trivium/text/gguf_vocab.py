"""The vocabulary inside a GGUF file → a `tokenizers.Tokenizer` that gives the token ids llama.cpp gives.

Two kinds (`tokenizer.ggml.model`): `gpt2`, byte-level BPE with listed merges, and `llama`, SentencePiece's BPE, whose merges follow
from the pieces' scores.
"""

from __future__ import annotations

from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from trivium.errors import ModelLoadError
from trivium.sources.gguf_file import GGUFFile
from trivium.text.panics import reraise
from trivium.text.pretokenizers import pre_tokenizer_named

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
BYTE: Final = 6

SPACE: Final = "\u2581"


def tokenizer_from_gguf(gguf: GGUFFile) -> Tokenizer:
    """Raises `ModelLoadError` for a vocabulary that is missing, contradictory or of an unknown kind."""
    kind = gguf.require_text("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(gguf)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(gguf), True
    else:
        raise ModelLoadError(f"{gguf.path}: vocabularies of kind {kind!r} (tokenizer.ggml.model) are not supported. Supported: gpt2, llama.")
    tokenizer.add_tokens(_added_tokens(gguf))  # pyright: ignore[reportUnknownMemberType]
    bos = token_named(gguf, "bos") if gguf.flag("tokenizer.ggml.add_bos_token", add_bos) else None
    eos = token_named(gguf, "eos") if gguf.flag("tokenizer.ggml.add_eos_token", False) else None
    _add_template(tokenizer, bos, eos)
    return tokenizer


def token_named(gguf: GGUFFile, role: str) -> str | None:
    """Text of the token with the role `bos`, `eos`, `padding` or `unknown`, if the file names one."""
    token_id = gguf.integer(f"tokenizer.ggml.{role}_token_id")
    if token_id is None:
        return None
    tokens = gguf.require_array("tokenizer.ggml.tokens")
    if not 0 <= token_id < len(tokens):
        raise ModelLoadError(f"{gguf.path}: tokenizer.ggml.{role}_token_id is {token_id}, but there are {len(tokens)} tokens.")
    return _spelled(token_id, tokens[token_id])


def _spelled(token_id: int, token: str) -> str:
    """llama.cpp's name for an empty token, which several ids may have."""
    return token or f"[EMPTY_{token_id}]"


def _vocabulary(gguf: GGUFFile) -> dict[str, int]:
    tokens = gguf.require_array("tokenizer.ggml.tokens")
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        if not isinstance(token, str):
            raise ModelLoadError(f"{gguf.path}: tokenizer.ggml.tokens is no list of strings.")
        token = _spelled(token_id, token)
        if vocab.setdefault(token, token_id) != token_id:
            raise ModelLoadError(f"{gguf.path}: token {token!r} has the ids {vocab[token]} and {token_id}.")
    return vocab


def _types(gguf: GGUFFile, count: int) -> list[int]:
    types = gguf.array("tokenizer.ggml.token_type")
    if types is None:
        return [NORMAL] * count
    if len(types) < count:
        raise ModelLoadError(f"{gguf.path}: {count} tokens but {len(types)} entries in tokenizer.ggml.token_type.")
    return types


def _byte_level(gguf: GGUFFile) -> tuple[Tokenizer, bool]:
    spec = pre_tokenizer_named(gguf.text("tokenizer.ggml.pre") or "default", str(gguf.path))
    merges: list[tuple[str, str]] = []
    for merge in gguf.require_array("tokenizer.ggml.merges"):
        # A token may itself start with a space; the separator comes after its first character.
        cut = merge.find(" ", 1) if isinstance(merge, str) else -1
        if cut < 0:
            raise ModelLoadError(f"{gguf.path}: {merge!r} in tokenizer.ggml.merges is no pair of tokens.")
        merges.append((merge[:cut], merge[cut + 1 :]))
    tokenizer = Tokenizer(_bpe(gguf, _vocabulary(gguf), merges, ignore_merges=spec.ignore_merges))
    tokenizer.pre_tokenizer = spec.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, spec.add_bos


def _bpe(gguf: GGUFFile, vocab: dict[str, int], merges: list[tuple[str, str]], **options: bool | str | None) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except BaseException as error:
        reraise(error, lambda message: ModelLoadError(f"{gguf.path}: merges and tokens don't fit together: {message}"))


def _sentencepiece(gguf: GGUFFile) -> Tokenizer:
    vocab = _vocabulary(gguf)
    merges = _merges_from_scores(gguf, vocab)
    unknown = token_named(gguf, "unknown") or next(iter(vocab), None)
    tokenizer = Tokenizer(_bpe(gguf, vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = gguf.flag("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix else replace
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_from_scores(gguf: GGUFFile, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours make the piece with the best score: all splits of all pieces, best piece first."""
    scores = gguf.require_array("tokenizer.ggml.scores")
    types = _types(gguf, len(vocab))
    if len(scores) < len(vocab):
        raise ModelLoadError(f"{gguf.path}: {len(vocab)} tokens but {len(scores)} entries in tokenizer.ggml.scores.")
    if scores and not isinstance(scores[0], int | float):
        raise ModelLoadError(f"{gguf.path}: tokenizer.ggml.scores is no list of numbers.")
    usable = {piece for piece, token_id in vocab.items() if types[token_id] == NORMAL}
    order = sorted(vocab.items(), key=lambda item: (-scores[item[1]], item[1]))
    return [
        (piece[:cut], piece[cut:])
        for piece, _ in order
        if piece in usable
        for cut in range(1, len(piece))
        if piece[:cut] in usable and piece[cut:] in usable
    ]


def _added_tokens(gguf: GGUFFile) -> list[AddedToken]:
    """Tokens that are cut out of the text before anything else; control tokens are also hidden from decoded text."""
    vocab = _vocabulary(gguf)
    types = _types(gguf, len(vocab))
    is_phi3 = gguf.text("general.architecture") == "phi3"
    return [
        AddedToken(token, special=types[token_id] != USER_DEFINED, normalized=False, rstrip=is_phi3 and _swallows_space(token))
        for token, token_id in vocab.items()
        if types[token_id] in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _swallows_space(token: str) -> bool:
    """Phi-3's tokenizer drops white space after its markers; GGUF has no field for that."""
    return token not in ("<unk>", "<s>", "<|endoftext|>")


def _add_template(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """What `add_special_tokens` adds around a text."""
    before = [] if bos is None else [("BOS", tokenizer.token_to_id(bos))]
    after = [] if eos is None else [("EOS", tokenizer.token_to_id(eos))]
    if before or after:
        single = [name for name, _ in before] + ["$A"] + [name for name, _ in after]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=[*single, "$B"], special_tokens=before + after)

"""How byte-level BPE vocabularies split text into words before merging, by the name GGUF files give it (`tokenizer.ggml.pre`).

Names are those of llama.cpp (src/llama-vocab.cpp); the expressions are the ones in the models' own tokenizer.json, which llama.cpp
rewrites for its engine. Each expression in turn splits what the ones before it left, matches and gaps alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from trivium.errors import ModelLoadError


@dataclass(frozen=True)
class PreTokenizer:
    """`ignore_merges`: a word that is in the vocabulary as a whole is taken as it is. `add_bos`: unless the file says otherwise."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        splits: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(each), "isolated") for each in self.expressions]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _llama3(digits: str) -> str:
    return "|".join((_CONTRACTION, _WORD, digits, _PUNCTUATION, _SPACE))


def _cased_words(suffix: str, digits: str) -> str:
    """Words split where lower case is followed by upper case (o200k and Tekken)."""
    words = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}")
    return "|".join((*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _SPACE))


_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACE,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"

_DIGIT_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_llama3(r"\p{N}{1,3}"),))
_QWEN2 = PreTokenizer((_llama3(r"\p{N}"),))

_GROUPS: list[tuple[PreTokenizer, str]] = [
    (PreTokenizer(_DEFAULT), "default"),
    (PreTokenizer((_GPT2,)), "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat exaone4 mellum a.x-4.0 modern-bert"),
    (_DIGIT_BY_DIGIT, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (PreTokenizer(_LLAMA3.expressions, ignore_merges=True, add_bos=True), "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (_LLAMA3, "dbrx smaug-bpe glm4 chatglm-bpe"),
    (_QWEN2, "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 kormo"),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (PreTokenizer(_DEEPSEEK_V3), "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
    (PreTokenizer(_FALCON), "falcon"),
    (PreTokenizer((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((_cased_words("", r"\p{N}"),), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_cased_words(f"{_CONTRACTION}?", r"\p{N}{1,3}"),)), "gpt-4o llama4 kanana2 minimax-m2"),
]
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: spec for spec, names in _GROUPS for name in names.split()}


def pre_tokenizer_named(name: str, where: str) -> PreTokenizer:
    """Raises `ModelLoadError` for a name that is not known: a guess would give a model tokens it never saw."""
    spec = PRE_TOKENIZERS.get(name)
    if spec is None:
        raise ModelLoadError(f"{where}: unknown pre-tokenizer {name!r} (tokenizer.ggml.pre). Known: {', '.join(sorted(PRE_TOKENIZERS))}.")
    return spec

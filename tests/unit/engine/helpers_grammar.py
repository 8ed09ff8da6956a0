"""A tokenizer as wide as the test checkpoints, and requests with and without grammars through one engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from helpers_checkpoints import VOCAB
from helpers_engine import InProcessEngine
from helpers_modes import make_prompts
from tokenizers import decoders, models, pre_tokenizers

from trivium.protocol.messages import AddRequest, TokenOutput
from trivium.text.grammar import to_llguidance
from trivium.types import SamplingParams, StructuredOutputsParams

EOS_ID = VOCAB - 1
LONGER = ('{"', '":', '",', '"}', "ab", "abc", "-1", "00", "--", 'a"')
TEXTS = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ", *LONGER]
PATTERN = r"[a-z]{3}(-[0-9]{2}){5}"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "abc"]}, "n": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "minItems": 4}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
WANTED = {1: StructuredOutputsParams(regex=PATTERN), 3: StructuredOutputsParams(json=SCHEMA), 6: StructuredOutputsParams(regex=PATTERN)}
"""By place of the prompt; the others are plain."""


def tokenizer_folder(folder: Path) -> Path:
    """Printable ASCII, some longer tokens, one end token; ids between them belong to nobody."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={text: token_id for token_id, text in enumerate(TEXTS)} | {"<|eos|>": EOS_ID}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>"}))
    return folder


def decoded(token_ids: list[int]) -> str:
    assert all(token_id < len(TEXTS) for token_id in token_ids)
    return "".join(TEXTS[token_id] for token_id in token_ids).replace("Ġ", " ")


def run_prompts(tokenizer: Path, params: SamplingParams, *, grammars: bool = True, places: range = range(7), **args: Any) -> dict[int, list[int]]:
    """Tokens of each prompt."""
    engine = InProcessEngine("llama", skip_tokenizer_init=False, tokenizer=str(tokenizer), **args)
    prompts = make_prompts()
    for place in places:
        has_grammar = grammars and place in WANTED
        own = msgspec.structs.replace(params, logprobs=2 if place in (3, 4) else None)
        addition = AddRequest(request_id=str(place), prompt_token_ids=prompts[place], params=own, max_tokens=32, eos_token_ids=[EOS_ID])
        addition.grammar = to_llguidance(WANTED[place]) if has_grammar else ""
        engine.script.inbox.append(addition)
    engine._turn()
    outputs: list[TokenOutput] = engine.script.outputs
    assert not any(output.error_message for output in outputs)
    found = {place: [token for output in outputs if output.request_id == str(place) for token in output.token_ids] for place in places}
    engine.engine.scheduler.check_integrity(thorough=True)
    if args.get("num_gpu_blocks_override"):
        assert engine.engine.scheduler.stats().num_preemptions > 0
    engine.close()
    return found


def check_grammars(found: dict[int, list[int]]) -> None:
    for place in (1, 6):
        assert found[place][-1] == EOS_ID
        assert re.fullmatch(PATTERN, decoded(found[place][:-1]))
    tokens = found[3]
    if tokens[-1] == EOS_ID:
        value = json.loads(decoded(tokens[:-1]))
        assert set(value) == {"kind", "n"}
        assert all(0 <= number <= 99 for number in value["n"])
    else:
        assert len(tokens) == 32

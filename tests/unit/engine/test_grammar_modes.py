"""Requests with and without grammars in one engine: grammars hold, and nobody's tokens depend on who else runs or how."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers_engine import InProcessEngine, checkpoint_folder
from helpers_grammar import EOS_ID, decoded, tokenizer_folder
from helpers_modes import MODES, make_prompts

from trivium import LLM
from trivium.protocol.messages import AddRequest, TokenOutput
from trivium.text.grammar import to_llguidance
from trivium.types import SamplingParams, StructuredOutputsParams

PATTERN = r"[a-z]{3}(-[0-9]{2}){5}"
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "abc"]}, "n": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "minItems": 4}},
    "required": ["kind", "n"],
    "additionalProperties": False,
}
WANTED = {1: StructuredOutputsParams(regex=PATTERN), 3: StructuredOutputsParams(json=SCHEMA), 6: StructuredOutputsParams(regex=PATTERN)}
"""By place of the prompt; the others are plain."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


def run(tokenizer: Path, params: SamplingParams, *, grammars: bool = True, places: range = range(7), **args: Any) -> dict[int, list[int]]:
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


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5, top_p=0.95, frequency_penalty=0.3)], ids=["greedy", "seeded"]
)
def test_grammars_hold_and_plain_rows_are_as_without_them_in_every_mode(tokenizer: Path, params: SamplingParams) -> None:
    found = run(tokenizer, params)
    check_grammars(found)
    plain = run(tokenizer, params, grammars=False)
    assert all(found[place] == plain[place] for place in range(7) if place not in WANTED)
    for mode, args in MODES.items():
        assert run(tokenizer, params, **args) == found, mode
    for place in WANTED:
        assert run(tokenizer, params, places=range(place, place + 1)) == {place: found[place]}


def test_two_ranks_make_the_same_masks(tokenizer: Path) -> None:
    args: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "num_threads": 1, "tokenizer": str(tokenizer)}
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=40, structured_outputs=WANTED[1] if seed % 2 else None) for seed in range(6)]
    results: list[list[list[int]]] = []
    for size in (1, 2):
        with LLM(model=checkpoint_folder("llama"), tensor_parallel_size=size, **args) as llm:
            outputs = llm.generate([[1, 2, 3 + place] for place in range(6)], params, use_tqdm=False)
        results.append([output.outputs[0].token_ids for output in outputs])
        texts = [output.outputs[0].text for place, output in enumerate(outputs) if place % 2]
        assert all(re.fullmatch(PATTERN, text) for text in texts), texts
    assert results[0] == results[1]

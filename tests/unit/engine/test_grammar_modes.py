"""Requests with and without grammars in one engine: grammars hold, and nobody's tokens depend on who else runs or how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers_engine import checkpoint_folder
from helpers_grammar import PATTERN, WANTED, check_grammars, run_prompts, tokenizer_folder
from helpers_modes import MODES

from trivium import LLM, SamplingParams, StructuredOutputsParams
from trivium.errors import InvalidRequest


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5, top_p=0.95, frequency_penalty=0.3)], ids=["greedy", "seeded"]
)
def test_grammars_hold_and_plain_rows_are_as_without_them_in_every_mode(tokenizer: Path, params: SamplingParams) -> None:
    found = run_prompts(tokenizer, params)
    check_grammars(found)
    plain = run_prompts(tokenizer, params, grammars=False)
    assert all(found[place] == plain[place] for place in range(7) if place not in WANTED)
    for mode, args in MODES.items():
        assert run_prompts(tokenizer, params, **args) == found, mode
    for place in WANTED:
        assert run_prompts(tokenizer, params, places=range(place, place + 1)) == {place: found[place]}


def test_two_ranks_make_the_same_masks(tokenizer: Path) -> None:
    args: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "num_threads": 1, "tokenizer": str(tokenizer)}
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=40, structured_outputs=WANTED[1] if seed % 2 else None) for seed in range(6)]
    results: list[list[list[int]]] = []
    for size in (1, 2):
        with LLM(model=checkpoint_folder("llama"), tensor_parallel_size=size, **args) as llm:
            outputs = llm.generate([[1, 2, 3 + place] for place in range(6)], params, use_tqdm=False)
            with pytest.raises(InvalidRequest, match="grammar is not valid"):
                llm.generate([[1]], SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")))
        results.append([output.outputs[0].token_ids for output in outputs])
        texts = [output.outputs[0].text for place, output in enumerate(outputs) if place % 2]
        assert all(re.fullmatch(PATTERN, text) for text in texts), texts
    assert results[0] == results[1]

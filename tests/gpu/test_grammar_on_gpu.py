"""Grammars through an engine on the GPU: captured steps, tokens that reach the host one step later, beside requests without a grammar."""

from __future__ import annotations

import re

import pytest
import torch
from helpers_scripted_engine import EOS_ID, VOCAB_SIZE, byte_tokenizer

from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.sampler import Sampler
from trivium.scheduling.step import NewRow
from trivium.types import SamplingParams, StructuredOutputsParams

PATTERN = r"[a-f]{3}(-[0-9]{2}){2}"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_row_holds_its_grammar(temperature: float) -> None:
    compiler = GrammarCompiler(byte_tokenizer, VOCAB_SIZE)
    sampler = Sampler(VOCAB_SIZE, 64, "cuda", 0, compiler)
    rows = list(range(64))
    for row in rows:
        wanted = StructuredOutputsParams(regex=PATTERN) if row % 3 else None
        params = SamplingParams(temperature=temperature, seed=row, structured_outputs=wanted)
        new_row = NewRow(
            row=row, request_id=str(row), params=params, prompt_token_ids=[1], output_token_ids=[], stop_token_ids=[EOS_ID], bad_words_token_ids=[]
        )
        sampler.add_row(new_row)
    generator = torch.Generator("cuda").manual_seed(0)
    outputs = []
    for _ in range(10):
        logits = torch.randn(len(rows), VOCAB_SIZE, device="cuda", generator=generator)
        # As the runner does it: the next step is launched before this one's tokens are read.
        outputs.append(sampler.sample(logits, rows).to_host(lambda tensor: tensor.to("cpu", non_blocking=False)))
    steps = [sampler.finish(output).token_ids for output in outputs]
    for row in rows:
        tokens = [step[row] for step in steps]
        if row % 3:
            text = bytes(tokens[:9]).decode()
            assert re.fullmatch(PATTERN, text), text
            assert tokens[9] == EOS_ID

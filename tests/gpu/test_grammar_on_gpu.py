"""Grammars on the GPU: masks by the kernel, tokens that reach the host one step later, captured steps, beside requests without a grammar."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_grammar import WANTED, check_grammars, run_prompts, tokenizer_folder
from helpers_scripted_engine import EOS_ID, VOCAB_SIZE, byte_tokenizer

from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.sampler import Sampler
from trivium.ops.sampling.grammar_mask import apply_grammar_mask, apply_grammar_mask_reference, mask_words
from trivium.scheduling.step import NewRow
from trivium.text.grammar import to_llguidance
from trivium.types import SamplingParams, StructuredOutputsParams

PATTERN = r"[a-f]{3}(-[0-9]{2}){2}"
GPU_MODES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "depth 0": {"pipeline_depth": 0},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "preempted": {"num_gpu_blocks_override": 17},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_row_holds_its_grammar(temperature: float) -> None:
    compiler = GrammarCompiler(byte_tokenizer, VOCAB_SIZE)
    sampler = Sampler(VOCAB_SIZE, 64, "cuda", 0, compiler)
    grammar = to_llguidance(StructuredOutputsParams(regex=PATTERN))
    rows = list(range(64))
    for row in rows:
        new_row = NewRow(
            row=row,
            request_id=str(row),
            params=SamplingParams(temperature=temperature, seed=row),
            prompt_token_ids=[1],
            output_token_ids=[],
            stop_token_ids=[EOS_ID],
            bad_words_token_ids=[],
            grammar=grammar if row % 3 else "",
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


@pytest.mark.parametrize("vocab_size", [211, 128_256, 151_936])
@pytest.mark.parametrize("num_lines", [1, 7, 256])
def test_the_kernel_is_the_reference(vocab_size: int, num_lines: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(num_lines + 1, vocab_size, generator=generator)
    masks = torch.randint(-(2**31), 2**31 - 1, (num_lines, mask_words(vocab_size + 1)), dtype=torch.int32, generator=generator)
    lines = torch.randperm(num_lines + 1, generator=generator)[:num_lines]
    found = logits.cuda()
    apply_grammar_mask(found, lines.cuda(), masks.cuda())
    apply_grammar_mask_reference(logits, lines, masks)
    assert torch.equal(found.cpu(), logits)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5, top_p=0.95)], ids=["greedy", "seeded"])
def test_grammars_hold_and_plain_rows_are_as_without_them(params: SamplingParams, tmp_path: Path) -> None:
    tokenizer = tokenizer_folder(tmp_path)
    found = run_prompts(tokenizer, params)
    check_grammars(found)
    plain = run_prompts(tokenizer, params, grammars=False)
    assert all(found[place] == plain[place] for place in range(7) if place not in WANTED)
    for mode, args in GPU_MODES.items():
        assert run_prompts(tokenizer, params, **args) == found, mode

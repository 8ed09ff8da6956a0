"""Structured outputs on their way to an engine: tried first, then sent as the grammar that the engine takes, once for each choice."""

from __future__ import annotations

from typing import Any

import pytest
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.llm.inputs import InputReader
from trivium.metrics.instruments import Registry
from trivium.text.grammar import to_llguidance
from trivium.types import GenerateRequest, SamplingParams, StructuredOutputsParams


async def run(wanted: StructuredOutputsParams, *, n: int = 1, **kwargs: Any) -> FakeEngine:
    engine = FakeEngine()
    model = fake_backend(engine, Registry(), **kwargs)
    source: dict[str, Any] = {"prompt_token_ids": [97]} if "tokenizer" in kwargs else {"prompt": "a"}
    params = SamplingParams(max_tokens=2, temperature=1.0, structured_outputs=wanted)
    generation = model.generate(GenerateRequest(request_id="r", model="fake", params=params, n=n, **source))
    try:
        async for _ in generation:
            pass
    finally:
        await generation.aclose()
        await model.close()
    return engine


async def test_the_engine_gets_the_grammar_and_nothing_else() -> None:
    wanted = StructuredOutputsParams(choice=["yes", "no"])
    engine = await run(wanted, n=2)
    assert [add.grammar for add in engine.submitted] == [to_llguidance(wanted)] * 2
    assert [add.params.structured_outputs for add in engine.submitted] == [None, None]


async def test_what_does_not_compile_never_gets_there() -> None:
    with pytest.raises(InvalidRequest, match="grammar is not valid") as refused:
        await run(StructuredOutputsParams(regex="(", origin="guided_regex"))
    assert refused.value.param == "guided_regex"


async def test_without_a_tokenizer_there_are_no_grammars() -> None:
    with pytest.raises(UnsupportedFeature, match="without a tokenizer") as refused:
        await run(StructuredOutputsParams(regex="a", origin="response_format"), tokenizer=None)
    assert refused.value.param == "response_format"
    reader = InputReader(None, vocab_size=300, max_model_len=100, max_logprobs=20)
    with pytest.raises(UnsupportedFeature, match="structured_outputs needs a tokenizer"):
        reader.params(SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")), 1)

"""On a GPU, when asked for: a request's tokens and logprobs are the same to the bit alone and in any batch, however prompts are chunked."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers_engine import InProcessEngine

from trivium.errors import ConfigError
from trivium.protocol.messages import TokenOutput
from trivium.types import SamplingParams

MODES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "chunks": {"max_num_batched_tokens": 300},
    "preempted": {"num_gpu_blocks_override": 300},
    "prefix hits": {"enable_prefix_caching": True},
}


def prompts() -> list[list[int]]:
    source = random.Random(1)
    return [[source.randrange(211) for _ in range(source.randrange(1, 90))] for _ in range(256)]


def params(index: int) -> SamplingParams:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9, "seed": index},
        {"temperature": 1.0, "top_k": 30, "seed": index, "logprobs": 2},
        {"temperature": 1.3, "min_p": 0.02, "frequency_penalty": 0.3},
    ]
    return SamplingParams(**kinds[index % 4], max_tokens=20, ignore_eos=True, prompt_logprobs=1 if index % 8 == 0 else None)


def bits(outputs: list[TokenOutput]) -> list[Any]:
    tokens = [token for output in outputs for token in output.token_ids]
    entries = [entry for output in outputs for entry in (*(output.prompt_logprobs or ())[1:], *(output.logprobs or ()))]
    return [tokens, [(entry.token_id, entry.logprob, entry.rank, entry.top_ids, entry.top_logprobs) for entry in entries if entry]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_requests_are_the_same_alone_and_among_256(name: str, dtype: str) -> None:
    wanted = [params(index) for index in range(256)]
    arguments = {"batch_invariant": True, "dtype": dtype, "max_num_seqs": 256, "num_gpu_blocks_override": 2048, "enable_prefix_caching": False}
    engine = InProcessEngine(name, **arguments)
    # Unseeded requests draw from a stream of their own name, so that names must be equal, too.
    together = [bits(outputs) for outputs in engine.outputs(prompts(), wanted)]
    for index in (0, 1, 2, 6, 8, 61, 250):
        engine._count = index
        assert bits(engine.outputs(prompts()[index : index + 1], wanted[index : index + 1])[0]) == together[index], index
    engine.close()
    if dtype == "bfloat16":
        for mode, changes in MODES.items():
            engine = InProcessEngine(name, **{**arguments, **changes})
            assert [bits(outputs) for outputs in engine.outputs(prompts(), wanted)] == together, mode
            assert (engine.engine.scheduler.stats().num_preemptions > 0) == (mode == "preempted")
            engine.close()


def test_what_has_no_such_kernels_is_refused() -> None:
    for name in ("mixtral", "deepseek-v3"):
        with pytest.raises(ConfigError, match="batch_invariant can't be had here"):
            InProcessEngine(name, batch_invariant=True)
    with pytest.raises(ConfigError, match="the attention back end flash"):
        InProcessEngine("llama", batch_invariant=True, attention_backend="flash")

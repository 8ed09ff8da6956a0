"""The packaged SmolLM2-135M-Instruct beside transformers on the same dequantized weights. One model is in memory at a time."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from helpers_engine import InProcessEngine
from torch import Tensor

from trivium.sources import resolve
from trivium.text import Tokenizer, load_tokenizer
from trivium.types import SamplingParams
from trivium.weights import open_source

NUM_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What do bees make?\nA:",
    "The three primary colours are red,",
    "To be, or not to be,",
    "你好，今天天气怎么样？",
    "中国的首都是",
    "请用一句话介绍一下人工智能。",
    "I love pizza 🍕 and sushi 🍣! My favourite",
    "👩‍👧 🇩🇪 😀😀😀",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "for (int i = 0; i < 10; i++) {\n    printf(",
    "SELECT name, COUNT(*) FROM users GROUP BY",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "The year 2024 minus 1999 equals",
    "3.14159265358979 is the number",
    "<|im_start|>user\nName a planet.<|im_end|>\n<|im_start|>assistant\n",
    "Größe, naïve, café, señor: words with",
]
ENGINE_ARGS: dict[str, Any] = {"max_model_len": 512, "num_gpu_blocks_override": 80}


@functools.cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve(""))


@functools.cache
def prompt_ids() -> list[list[int]]:
    return [tokenizer().encode(text) for text in PROMPTS]


@dataclass
class Run:
    """One prompt's greedy continuation and the logprobs of its own tokens from the second on."""

    tokens: list[int]
    prompt_logprobs: list[float]


@functools.cache
def ours(dtype: str) -> list[Run]:
    """All prompts in one batch through the engine, chunked and unchunked alike."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, prompt_logprobs=0)
    return _run(dtype, prompt_ids(), params)


@functools.cache
def our_logprobs(dtype: str) -> list[Tensor]:
    """Of `sequences()`, position by position from the second token on."""
    runs = _run(dtype, sequences(), SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))
    return [torch.tensor(run.prompt_logprobs) for run in runs]


def sequences() -> list[list[int]]:
    """Prompts followed by their float32 continuations."""
    return [prompt + run.tokens for prompt, run in zip(prompt_ids(), ours("float32"), strict=True)]


def _run(dtype: str, prompts: Sequence[list[int]], params: SamplingParams) -> list[Run]:
    engine = InProcessEngine("", dtype=dtype, **ENGINE_ARGS)
    runs: list[Run] = []
    for outputs in engine.outputs(list(prompts), params):
        logprobs = outputs[0].prompt_logprobs
        assert logprobs is not None
        assert logprobs[0] is None
        runs.append(Run([token for output in outputs for token in output.token_ids], [entry.logprob for entry in logprobs if entry is not None]))
    engine.close()
    del engine
    gc.collect()
    return runs


@dataclass
class Reference:
    """What transformers says about one of `sequences()`: at each position but the last, about the next token."""

    logprobs: Tensor  # [T - 1]; of the token that follows
    choices: list[int]
    """The likeliest next token at each position."""


@functools.cache
def theirs(dtype: str) -> list[Reference]:
    found: list[Reference] = []
    with reference_model(dtype) as model, torch.inference_mode():
        for tokens in sequences():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1].float()
            following = torch.tensor(tokens[1:])[:, None]
            found.append(Reference(logits.log_softmax(-1).gather(1, following).squeeze(1), logits.argmax(-1).tolist()))
    return found


@contextmanager
def reference_model(dtype: str) -> Iterator[Any]:
    """transformers' Llama with the tensors our GGUF reader makes."""
    files = resolve("")
    fields = {name: value for name, value in files.config.items() if name not in ("architectures", "model_type", "torch_dtype")}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    source = open_source(files)
    wanted = getattr(torch, dtype)
    state = {name: source.load(name).to(wanted) for name in source.names()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    # Not in the checkpoint, hence still on the meta device; frequencies stay float32 as from_pretrained has them.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    try:
        yield model.eval()
    finally:
        del model, state, source
        gc.collect()

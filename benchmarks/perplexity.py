"""Perplexity of a text under models and quantization settings: what a scheme costs in quality.

    python benchmarks/perplexity.py --text FILE MODEL MODEL:fp8 MODEL:bitsandbytes-nf4 ./quantized-folder

A model may carry a `quantization` setting behind a colon. The text is cut into windows of `--length` tokens; each token but the first of a
window counts. Prints a table; the first model is what the others are compared with.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

from trivium.config import Quantization
from trivium.llm import LLM
from trivium.types import SamplingParams

SETTINGS = Quantization.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Outcome:
    model: str
    perplexity: float
    num_tokens: int
    weight_bytes: int
    seconds: float


def measure(argument: str, text: str, *, tokenizer: str | None, length: int, max_windows: int) -> Outcome:
    model, colon, setting = argument.rpartition(":")
    if not colon or setting not in SETTINGS:
        model, setting = argument, "auto"
    with LLM(model, tokenizer=tokenizer, quantization=setting, max_model_len=length + 8, max_num_batched_tokens=max(512, length)) as llm:
        tokens = llm.get_tokenizer().encode(text)
        windows = [tokens[start : start + length] for start in range(0, len(tokens) - length + 1, length)][:max_windows]
        begin = time.monotonic()
        prompts = [{"prompt_token_ids": window} for window in windows]
        results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        seconds = time.monotonic() - begin
        total, count = 0.0, 0
        for window, result in zip(windows, results, strict=True):
            assert result.prompt_logprobs is not None
            for token, entry in zip(window[1:], result.prompt_logprobs[1:], strict=True):
                assert entry is not None
                total -= entry[token].logprob
                count += 1
        return Outcome(argument, math.exp(total / count), count, llm._client.ready.memory["weights"], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", help="When a model has none of its own.")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--windows", type=int, default=64)
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")
    print(f"{'model':44s} {'perplexity':>10s} {'change':>8s} {'weights':>10s} {'tokens':>8s} {'time':>7s}")
    first: float | None = None
    for model in arguments.models:
        found = measure(model, text, tokenizer=arguments.tokenizer, length=arguments.length, max_windows=arguments.windows)
        first = first or found.perplexity
        change = f"{100 * (found.perplexity / first - 1):+.1f} %"
        print(
            f"{model:44s} {found.perplexity:10.3f} {change:>8s} {found.weight_bytes / 2**20:6.0f} MiB {found.num_tokens:8d} {found.seconds:6.1f}s",
            flush=True,
        )


if __name__ == "__main__":
    main()

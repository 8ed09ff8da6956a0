"""Ways to run the same requests, which must not change what comes out."""

from __future__ import annotations

import random
from typing import Any

from helpers_checkpoints import VOCAB

from trivium.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=32)
SEEDED = [
    SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=32),
    SamplingParams(temperature=1.2, top_k=20, seed=8, max_tokens=32, presence_penalty=0.5),
]
MODES: dict[str, dict[str, Any]] = {
    "depth 0": {"pipeline_depth": 0},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "blocks of 8": {"block_size": 8},
    "blocks of 64": {"block_size": 64},
    "preempted": {"num_gpu_blocks_override": 17},
    "preempted, depth 0": {"num_gpu_blocks_override": 17, "pipeline_depth": 0},
    "no prefix cache": {"enable_prefix_caching": False},
}


def make_prompts() -> list[list[int]]:
    source = random.Random(11)
    return [[source.randrange(VOCAB) for _ in range(length)] for length in (1, 3, 8, 16, 31, 64, 90)]

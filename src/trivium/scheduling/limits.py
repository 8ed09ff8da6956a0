"""What the scheduler may hand out: resolved numbers, no "auto"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trivium.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerLimits:
    """Raises `ConfigError` for numbers with which nothing could run."""

    max_num_seqs: int
    """Rows: requests that run at once."""
    max_num_batched_tokens: int
    """Token budget of one step."""
    max_model_len: int
    """Longest prompt and output together, in tokens."""
    num_blocks: int
    """KV blocks that exist, the null block 0 included."""
    block_size: int = 16
    """Tokens per block."""
    watermark: float = 0.01
    """Share of blocks left free by an admission while others run."""
    enable_prefix_caching: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    """Most prefill tokens of one request in one step while there are other requests; 0: no limit."""

    prompt_spread: int = 1
    """Steps over which the prompts that wait are spread while other requests decode; 1: as much as fits into each step."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_blocks", "block_size", "prompt_spread"):
            least = 2 if name in ("max_model_len", "num_blocks") else 1
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}.", param=name)

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values fit in the whole cache."""
        return self.num_usable_blocks * self.block_size

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_usable_blocks)

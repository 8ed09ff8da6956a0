"""Token counts of a request, summed over its prompts and choices."""

from __future__ import annotations

from typing import Any

from trivium.types import PromptInfo, TokenEvent, Usage


class UsageCounter:
    def __init__(self) -> None:
        self.usage = Usage()

    def on_prompt(self, info: PromptInfo) -> None:
        self.usage.prompt_tokens += len(info.prompt_token_ids)
        self.usage.cached_tokens += info.num_cached_tokens

    def on_tokens(self, event: TokenEvent) -> None:
        self.usage.completion_tokens += len(event.token_ids)

    def shape(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }

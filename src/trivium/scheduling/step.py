"""What crosses between scheduler and executor: one `StepPlan` out, one `StepResult` back, in order.

Both are plain columns of ints, so that they travel to other ranks as msgpack and turn into arrays without a loop.
A *row* is a slot of the runner's persistent state; the scheduler hands it to a request when it starts to run and takes it back when
the request finishes or is preempted.
"""

from __future__ import annotations

import msgspec

from trivium.protocol.messages import TokenLogprobs
from trivium.types import SamplingParams


class NewRow(msgspec.Struct, array_like=True, kw_only=True):
    """A request that takes `row` from this step on; whatever the row held before is gone."""

    row: int
    request_id: str
    params: SamplingParams
    prompt_token_ids: list[int]
    """The whole prompt (penalties and prompt logprobs need it)."""
    output_token_ids: list[int]
    """Tokens sampled before a preemption; empty for a new request. Also the counter of the row's random stream."""
    stop_token_ids: list[int]
    """EOS and stop ids, masked until `params.min_tokens` outputs exist."""
    bad_words_token_ids: list[list[int]]
    grammar: str = ""
    """What the output must look like, as in `AddRequest`."""


class StepPlan(msgspec.Struct, array_like=True, kw_only=True):
    """One forward pass. Columns run over the scheduled rows, in batch order: rows with a single token first."""

    step_id: int
    new_rows: list[NewRow]
    rows: list[int]
    num_tokens: list[int]
    """Tokens of the row computed in this step, at positions `num_computed .. num_computed + num_tokens`."""
    num_computed: list[int]
    """Tokens of the row whose keys and values are in the cache before this step."""
    num_fed: list[int]
    """How many of `token_ids` belong to the row: `num_tokens`, or 0 when its one input is the token the row sampled last, which
    never left the device."""
    token_ids: list[int]
    samples: list[bool]
    """Whether the row's last position is sampled: false only for an unfinished prefill chunk."""
    block_starts: list[int]
    """Index in the row's block table at which `new_blocks` go."""
    new_blocks: list[list[int]]

    @property
    def total_tokens(self) -> int:
        return sum(self.num_tokens)


class StepResult(msgspec.Struct, array_like=True, kw_only=True):
    """What a plan produced. Columns run over the rows of the plan whose `samples` is true, in plan order."""

    step_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] = []
    """Empty when no sampled row asked for them."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    """By row: one entry for each prompt token *predicted* in this step, that is for positions
    `num_computed + 1 .. num_computed + num_tokens` (end included) that lie inside the prompt."""
    failed_rows: dict[int, str] = {}
    """Rows whose logits were not finite, with the reason; their entry in `token_ids` means nothing."""

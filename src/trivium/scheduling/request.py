"""One sequence, from arrival to its last token, as the scheduler sees it."""

from __future__ import annotations

from enum import Enum, auto

from trivium.protocol.messages import AddRequest, TokenLogprobs
from trivium.scheduling.step import NewRow

NO_ROW = -1


class Status(Enum):
    WAITING = auto()
    """Not yet started."""
    RUNNING = auto()
    """Has a row and blocks for all its known tokens."""
    PREEMPTED = auto()
    """Was running; waits again, with no row and no block, and starts over with the tokens it has. A token may still be in flight."""
    FINISHED = auto()
    """Its last output was made; results that still arrive are dropped."""


class Request:
    """Tokens known so far, and how far they are computed.

    - `num_computed`: tokens that scheduled steps compute, whether they have run or not;
    - `prefill_end`: tokens that were known when the request last left the queue. Below it inputs come from `token_ids`; from there on every
      step feeds the one token that the row itself sampled last, which may not have reached the host yet;
    - `max_len`: prompt and output together when `length` ends it. The token at `last_position`, the last one, is never fed.
    """

    __slots__ = (
        "bad_words_token_ids",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "capacity",
        "eos_token_ids",
        "grammar",
        "has_news",
        "last_position",
        "last_step",
        "max_len",
        "min_len",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published",
        "params",
        "prefill_end",
        "prompt_logprobs",
        "reads_cache",
        "request_id",
        "row",
        "scheduled_at",
        "sort_key",
        "status",
        "stop_ids",
        "token_ids",
    )

    def __init__(self, message: AddRequest, *, sort_key: tuple[int, int], max_len: int) -> None:
        """`max_len` bounds prompt and output together; `sort_key` is (priority, arrival)."""
        params = message.params
        self.request_id = message.request_id
        self.params = params
        self.sort_key = sort_key
        self.bad_words_token_ids = message.bad_words_token_ids
        self.cache_salt = message.cache_salt
        self.grammar = message.grammar
        self.token_ids = message.prompt_token_ids.copy()
        self.num_prompt_tokens = len(self.token_ids)
        self.max_len = max_len
        self.last_position = max_len - 1
        self.min_len = self.num_prompt_tokens + params.min_tokens
        self.eos_token_ids = message.eos_token_ids
        self.stop_ids = frozenset([*(() if params.ignore_eos else message.eos_token_ids), *(params.stop_token_ids or ())])
        # A cached block has no prompt logprobs to give, so they always win over reading the cache.
        self.reads_cache = params.prompt_logprobs is None and not params.skip_reading_prefix_cache

        self.status = Status.WAITING
        self.row = NO_ROW
        self.block_ids: list[int] = []
        self.capacity = 0
        """Tokens that `block_ids` have room for."""
        self.num_computed = 0
        self.prefill_end = 0
        self.last_step = -1
        """Id of the last step that has this request in it."""
        self.block_hashes: list[bytes] = []
        """Of the full blocks of `token_ids`, as far as needed yet; each is computed once in a request's life."""
        self.num_published = 0
        """Blocks of the table, from its start, that are findable."""
        self.num_preemptions = 0

        self.has_news = True
        """Whether the next output carries more than its token: the three below."""
        self.scheduled_at = 0.0
        self.num_cached_tokens: int | None = None
        """Prompt tokens hit when the request first started."""
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        """As many as were computed; None once delivered, or when nobody asked."""

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Asked for and not yet delivered."""
        return self.params.prompt_logprobs is not None and self.num_output_tokens == 0

    def new_row(self) -> NewRow:
        prompt_end = self.num_prompt_tokens
        return NewRow(
            row=self.row,
            request_id=self.request_id,
            params=self.params,
            prompt_token_ids=self.token_ids[:prompt_end],
            output_token_ids=self.token_ids[prompt_end:],
            # Masked until `min_tokens` even under `ignore_eos`, hence not `stop_ids`; dict.fromkeys drops doubles and keeps the order.
            stop_token_ids=list(dict.fromkeys([*self.eos_token_ids, *(self.params.stop_token_ids or ())])),
            bad_words_token_ids=self.bad_words_token_ids,
            grammar=self.grammar,
        )

    def end_of(self, token_id: int) -> tuple[str, int | None] | None:
        """(finish reason, stop reason) if the just appended `token_id` ends the request. A stop id goes before the length, as in vLLM."""
        num_tokens = len(self.token_ids)
        if num_tokens >= self.min_len and token_id in self.stop_ids:
            is_eos = token_id in self.eos_token_ids and not self.params.ignore_eos
            return "stop", None if is_eos else token_id
        return ("length", None) if num_tokens >= self.max_len else None

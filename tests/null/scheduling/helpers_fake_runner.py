"""A runner without a model, strict about everything a real one relies on.

Keys and values are modelled by what they depend on: a slot of the cache holds a digest of all tokens up to its position (and the salt under
which they were computed). Every step first writes its slots, then checks that each row finds the right digest at each earlier position, so
a wrong prefix hit, a block handed out twice or reused too early fails at once. The sampled token is a function of the same digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trivium.protocol.messages import TokenLogprobs
from trivium.scheduling import SchedulerLimits, StepPlan, StepResult
from trivium.scheduling.step import NewRow

NAN = ("nan", "nan")
Slot = tuple[int | str, str | None]


def extend_digest(digest: int, token_id: int) -> int:
    return hash((digest, token_id, 0x9E3779B9))


def sample(digest: int, vocab_size: int) -> int:
    return (digest >> 5) % vocab_size


def logprob_of(digest: int, token_id: int) -> TokenLogprobs:
    """Logprobs of `token_id` after the prefix with `digest`: arbitrary, but determined by the prefix."""
    return TokenLogprobs(token_id=token_id, logprob=-float((digest ^ token_id) % 97), rank=1, top_ids=[token_id], top_logprobs=[-1.0])


def generate_reference(prompt: list[int], count: int, vocab_size: int) -> list[int]:
    """The tokens that follow `prompt` when nothing stops them."""
    digest = 1
    for token_id in prompt:
        digest = extend_digest(digest, token_id)
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(sample(digest, vocab_size))
        digest = extend_digest(digest, tokens[-1])
    return tokens


@dataclass
class Row:
    new: NewRow
    salt: str | None
    tokens: list[int]
    """All that the device knows, its own samples included."""
    digests: list[int] = field(default_factory=list)
    """By position, of `tokens`."""
    num_computed: int = 0
    has_sampled: bool = False
    table: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        digest = 1
        for token_id in self.tokens:
            digest = extend_digest(digest, token_id)
            self.digests.append(digest)

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self.digests.append(extend_digest(self.digests[-1], token_id))


class FakeRunner:
    def __init__(self, limits: SchedulerLimits, *, vocab_size: int = 1000) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self.salts: dict[str, str | None] = {}
        self.poisoned_from: dict[str, int] = {}
        """Request id to the first position at which what it computes is NaN."""
        self.rows: dict[int, Row] = {}
        self.slots: list[Slot | None] = [None] * (limits.num_blocks * limits.block_size)
        self.num_steps = 0
        self.num_written = 0

    def run(self, plan: StepPlan) -> StepResult:
        self._check_shape(plan)
        fed = iter(plan.token_ids)
        self._take_rows(plan)
        for index in range(len(plan.rows)):
            self._take_input(plan, index, [next(fed) for _ in range(plan.num_fed[index])])
        assert next(fed, None) is None, "tokens left over"
        written: set[int] = set()
        for index in range(len(plan.rows)):
            self._write(plan, index, written)
        self.num_written += len(written)
        result = StepResult(step_id=plan.step_id, token_ids=[])
        for index in range(len(plan.rows)):
            self._read_and_sample(plan, index, result)
        if not any(result.logprobs):
            result.logprobs = []
        return result

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.step_id == self.num_steps, "steps are numbered without gaps"
        self.num_steps += 1
        columns = (plan.num_tokens, plan.num_computed, plan.num_fed, plan.samples, plan.block_starts, plan.new_blocks)
        assert len(plan.rows) > 0
        assert all(len(column) == len(plan.rows) for column in columns)
        assert len(set(plan.rows)) == len(plan.rows), "a row is scheduled twice"
        assert all(0 <= row < self.limits.max_num_seqs for row in plan.rows)
        assert all(count >= 1 for count in plan.num_tokens)
        is_long = [count > 1 for count in plan.num_tokens]
        assert is_long == sorted(is_long), "rows with a single token come first"
        assert plan.total_tokens <= self.limits.max_num_batched_tokens
        assert {new.row for new in plan.new_rows} <= set(plan.rows)
        assert sum(plan.num_fed) == len(plan.token_ids)

    def _take_rows(self, plan: StepPlan) -> None:
        for new in plan.new_rows:
            self.rows[new.row] = Row(new=new, salt=self.salts.get(new.request_id), tokens=[*new.prompt_token_ids, *new.output_token_ids])
            index = plan.rows.index(new.row)
            hits = plan.num_computed[index]
            assert hits % self.limits.block_size == 0, "only full blocks are hit"
            assert hits < len(self.rows[new.row].tokens), "the last token is always computed"
            self.rows[new.row].num_computed = hits

    def _take_input(self, plan: StepPlan, index: int, fed: list[int]) -> None:
        row, count, start, size = self.rows[plan.rows[index]], plan.num_tokens[index], plan.num_computed[index], self.limits.block_size
        assert start == row.num_computed, "a position was skipped or repeated"
        if row.has_sampled:
            assert (count, fed) == (1, []), "the token the row sampled last never left the device"
        else:
            assert fed == row.tokens[start : start + count]
        row.num_computed = end = start + count
        assert plan.samples[index] == (end == len(row.tokens))
        assert end <= self.limits.max_model_len
        if plan.new_blocks[index]:
            assert plan.block_starts[index] == len(row.table), "block tables only grow"
            row.table += plan.new_blocks[index]
        assert len(set(row.table)) == len(row.table), "a block is twice in a table"
        assert all(1 <= block < self.limits.num_blocks for block in row.table)
        assert len(row.table) == -(-len(row.tokens) // size), "a row has the blocks of its known tokens, no more"

    def _slot(self, row: Row, position: int) -> int:
        size = self.limits.block_size
        return row.table[position // size] * size + position % size

    def _write(self, plan: StepPlan, index: int, written: set[int]) -> None:
        row, start = self.rows[plan.rows[index]], plan.num_computed[index]
        poisoned_from = self.poisoned_from.get(row.new.request_id, 1 << 30)
        for position in range(start, row.num_computed):
            slot = self._slot(row, position)
            assert slot not in written, "two rows write one slot"
            written.add(slot)
            self.slots[slot] = NAN if position >= poisoned_from else (row.digests[position], row.salt)

    def _read_and_sample(self, plan: StepPlan, index: int, result: StepResult) -> None:
        row, start, end = self.rows[plan.rows[index]], plan.num_computed[index], self.rows[plan.rows[index]].num_computed
        is_finite = True
        for position in range(end):
            slot = self.slots[self._slot(row, position)]
            if slot == NAN:
                is_finite = False
            else:
                assert slot == (row.digests[position], row.salt), f"{row.new.request_id}: position {position} holds something else"
        prompt = row.new.prompt_token_ids
        if row.new.params.prompt_logprobs is not None:
            predicted = range(start + 1, min(end + 1, len(prompt)))
            if predicted:
                result.prompt_logprobs[plan.rows[index]] = [logprob_of(row.digests[position - 1], prompt[position]) for position in predicted]
        if not is_finite:
            result.failed_rows[plan.rows[index]] = "logits are not finite"
        if not plan.samples[index]:
            return
        token_id = sample(row.digests[-1], self.vocab_size) if is_finite else -1
        result.token_ids.append(token_id)
        result.logprobs.append(logprob_of(row.digests[-1], token_id) if row.new.params.logprobs is not None else None)
        row.append(max(token_id, 0))
        row.has_sampled = True

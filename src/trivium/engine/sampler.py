"""`Sampler`: the logits of a step to one token a row, without a word between device and host until the results are read.

Order, as in vLLM: logprobs are of the raw logits; then allowed tokens, bad words, min_tokens, logit bias, grammar, penalties, greedy or temperature,
min_p, top_k, top_p, typical_p, draw. `plan` decides on the host what the scheduled rows need; a stage that no row needs costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.grammar import GrammarTable
from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.sampling_edits import EditTable
from trivium.engine.sampling_state import BAD_WORDS, EDIT, FILTER, GRAMMAR, LOGPROBS, PENALTY, TYPICAL, ParamTable, PenaltyTable, has_penalties
from trivium.engine.staging import Staging
from trivium.ops.sampling.argmax import row_maxima
from trivium.ops.sampling.draw import NOT_FINITE, draw_rows
from trivium.ops.sampling.logprobs import LogprobTensors, gather_logprobs
from trivium.ops.sampling.table import SamplingTable
from trivium.protocol.messages import TokenLogprobs
from trivium.scheduling.step import NewRow

NOTHING_LEFT = -2
FAILURES = {
    NOT_FINITE: "The model's logits hold NaN or infinity.",
    NOTHING_LEFT: "No token can be sampled: allowed_token_ids, bad_words, min_tokens, penalties and the grammar together leave none.",
}
"""Negative codes in `SampleOutput.outcome`."""
MAX_SHIPPED = 16


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """What a step's lines need, decided on the host. Lists hold lines (indices into the step's logits), in order."""

    rows: list[int]
    is_filtered: bool = False
    """Some line has filters or penalties."""
    is_typical: bool = False
    edits: list[int] = field(default_factory=list)
    below_min_tokens: list[int] = field(default_factory=list)
    bad_words: list[int] = field(default_factory=list)
    grammar: list[int] = field(default_factory=list)
    logprobs: list[int] = field(default_factory=list)
    num_logprobs: list[int] = field(default_factory=list)
    """For each entry of `logprobs`: how many candidates, already resolved (-1 became the vocabulary)."""

    @property
    def changes_logits(self) -> bool:
        return bool(self.edits or self.below_min_tokens or self.grammar)

    @property
    def is_simple(self) -> bool:
        """`Sampler.sample_simple` does all of it: penalties, greedy, temperature, min_p, top_k and top_p only."""
        return not (self.is_typical or self.changes_logits or self.logprobs)


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """S sampled lines, or the positions of `prompt_logprobs`. Tensors are on the device until `to_host`."""

    token_ids: Tensor  # [S] int64, always in the vocabulary; 0 for a failed line
    outcome: Tensor  # [S] int64: the token, or a negative code for a failed line
    logprobs: LogprobTensors | None = None
    lines: list[int] = field(default_factory=list)
    """The line of each position in `logprobs`."""
    num_logprobs: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    """By line: why it has no token, where the host knows better than `outcome`."""

    def to_host(self, fetch: Callable[[Tensor], Tensor]) -> SampleOutput:
        """The same on the host; readable once an event recorded after this call has passed."""
        outcome, found = fetch(self.outcome), self.logprobs
        if found is not None:
            found = LogprobTensors(fetch(found.ids), fetch(found.logprobs), fetch(found.ranks))
        return SampleOutput(outcome, outcome, found, self.lines, self.num_logprobs, self.reasons)


@dataclass(frozen=True, slots=True)
class SampledLines:
    """A `SampleOutput` as plain values: the parts of a `StepResult`."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    """Empty when no line asked for them."""
    failed: dict[int, str]
    """By line: why it has no token."""


class Sampler:
    """Parameters and random streams of all rows. Calls come from one thread, in step order; `finish` may come later."""

    def __init__(
        self,
        vocab_size: int,
        max_num_seqs: int,
        device: torch.device | str,
        default_seed: int = 0,
        grammars: GrammarCompiler | None = None,
        *,
        is_leader: bool = True,
    ) -> None:
        """`is_leader`: this is rank 0, whose failed lines end requests."""
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.padding_row = max_num_seqs
        """A greedy row for the padding lines of captured graphs."""
        self._staging = Staging(self.device)
        self._table = ParamTable(vocab_size, max_num_seqs, self.device, self._staging, default_seed)
        self._edits = EditTable(vocab_size, max_num_seqs, self.device, self._staging)
        self._penalties = PenaltyTable(vocab_size, self.device, self._staging)
        self._grammars = GrammarTable(grammars, vocab_size, self._staging, ends_slow_rows=is_leader)
        self._shipped: dict[tuple[int, ...], Tensor] = {}

    @property
    def table(self) -> SamplingTable:
        """The rows' parameters where kernels read them."""
        return self._table.device_rows

    def add_row(self, new_row: NewRow) -> None:
        """Take the row over, new or resumed after a preemption; what it held is gone."""
        self._grammars.add_row(new_row)
        self._edits.add_row(new_row)
        if has_penalties(new_row.params):
            self._table.add_row(new_row, self._penalties.add_row(new_row))
        else:
            self._penalties.remove_row(new_row.row)
            self._table.add_row(new_row, 0)

    def sample(self, logits: Tensor, rows: list[int], rows_device: Tensor | None = None) -> SampleOutput:
        """One token for each line of `logits` [S, V] float32, which may be overwritten. `rows[i]` is the row of line i; no row comes twice."""
        return self.run(logits, self.plan(rows), rows_device)

    def plan(self, rows: list[int]) -> SamplePlan:
        """What the rows need now. Call it once a step: it counts the step's tokens, and writes new rows to the device."""
        table = self._table
        table.flush()
        index = np.array(rows, dtype=np.int64)
        flags = table.flags[index]
        is_short = table.num_outputs[index] < table.min_tokens[index]
        table.num_outputs[index] += 1
        union = int(np.bitwise_or.reduce(flags, initial=0))
        logprob_lines = _lines(flags, LOGPROBS) if union & LOGPROBS else []
        return SamplePlan(
            rows=rows,
            is_filtered=bool(union & (FILTER | PENALTY)),
            is_typical=bool(union & TYPICAL),
            edits=_lines(flags, EDIT) if union & EDIT else [],
            below_min_tokens=np.flatnonzero(is_short).tolist(),
            bad_words=_lines(flags, BAD_WORDS) if union & BAD_WORDS else [],
            grammar=_lines(flags, GRAMMAR) if union & GRAMMAR else [],
            logprobs=logprob_lines,
            num_logprobs=[int(table.num_logprobs[rows[line]]) for line in logprob_lines],
        )

    def sample_simple(self, logits: Tensor, rows_device: Tensor, *, is_filtered: bool) -> SampleOutput:
        """All of a plan that `is_simple`: tensors in, tensors out, so that a CUDA graph can hold it. With `is_filtered` it serves plans without
        filters too, at the price of six short launches. On a GPU logits may have any float type. rows_device [S] int64; padding lines name
        `padding_row`."""
        return SampleOutput(*self._draw(logits, rows_device, is_filtered=is_filtered, is_typical=False))

    def run(self, logits: Tensor, plan: SamplePlan, rows_device: Tensor | None = None) -> SampleOutput:
        """What `plan` says, of any kind; logits [S, V] float32."""
        if rows_device is None:
            rows_device = self._ship(plan.rows)
        if plan.is_simple:
            return self.sample_simple(logits, rows_device, is_filtered=plan.is_filtered)
        raw, raw_maxima = self._raw_lines(logits, plan), None
        if plan.changes_logits:
            logits = logits.contiguous()  # of several ranks they are a part of wider ones, cut to the vocabulary
            raw_maxima = row_maxima(logits)
            self._edits.apply(logits, plan.rows, plan.edits, plan.below_min_tokens)
        reasons: dict[int, str] = {}
        if plan.grammar:
            reasons = self._grammars.apply(logits, plan.rows, plan.grammar, self._ship(plan.grammar))
        token_ids, outcome = self._draw(logits, rows_device, is_filtered=plan.is_filtered, is_typical=plan.is_typical)
        if raw_maxima is not None:
            outcome = torch.where(raw_maxima.abs() < torch.inf, outcome.where(outcome >= 0, NOTHING_LEFT), NOT_FINITE)
            token_ids = outcome.clamp(min=0)
        if plan.bad_words:
            lines = self._ship(plan.bad_words)
            self._edits.record(rows_device.index_select(0, lines), token_ids.index_select(0, lines))
        if plan.grammar:
            chosen = token_ids.index_select(0, self._ship(plan.grammar))
            self._grammars.record([plan.rows[line] for line in plan.grammar], chosen)
        if raw is None:
            return SampleOutput(token_ids, outcome, reasons=reasons)
        chosen = token_ids.index_select(0, self._ship(plan.logprobs))
        found = gather_logprobs(raw, chosen, max(plan.num_logprobs))
        return SampleOutput(token_ids, outcome, found, plan.logprobs, plan.num_logprobs, reasons)

    def prompt_logprobs(self, logits: Tensor, targets: Tensor, top_k: int) -> SampleOutput:
        """Logprobs of given tokens: logits [P, V] float32, targets [P] int64, top_k candidates beside each (-1: all).
        `finish` reads them as it reads sampled lines."""
        count = self._resolve_top_k(top_k)
        found = gather_logprobs(logits, targets, count)
        return SampleOutput(targets, targets, found, list(range(len(targets))), [count] * len(targets))

    def finish(self, output: SampleOutput) -> SampledLines:
        """Plain values of an output whose host copies have arrived."""
        outcome: list[int] = output.outcome.tolist()
        failed = {line: output.reasons.get(line, FAILURES[value]) for line, value in enumerate(outcome) if value < 0}
        return SampledLines([max(value, 0) for value in outcome], _token_logprobs(output, len(outcome)), failed)

    def _ship(self, values: list[int]) -> Tensor:
        """Indices on the device, not to be written to. Steps of the same rows ship the same few lists, so the last ones are kept."""
        key = tuple(values)
        found = self._shipped.get(key)
        if found is None:
            if len(self._shipped) >= MAX_SHIPPED:
                del self._shipped[next(iter(self._shipped))]
            found = self._shipped[key] = self._staging.ship(np.array(values, dtype=np.int64))
        return found

    def _resolve_top_k(self, top_k: int) -> int:
        return self.vocab_size if top_k < 0 else min(top_k, self.vocab_size)

    def _draw(self, logits: Tensor, rows_device: Tensor, *, is_filtered: bool, is_typical: bool) -> tuple[Tensor, Tensor]:
        table, is_on_host = self._table.device_rows, not logits.is_cuda
        rows: list[int] = rows_device.tolist() if is_on_host and is_filtered else []
        if rows:
            self._penalties.apply_on_cpu(logits, rows)
        token_ids, outcome = draw_rows(logits, table, rows_device, is_full=is_filtered, has_typical=is_typical)
        if rows:
            self._penalties.count_on_cpu(rows, outcome.tolist())
        return token_ids, outcome

    def _raw_lines(self, logits: Tensor, plan: SamplePlan) -> Tensor | None:
        """The lines that want logprobs, as they are before anything changes them."""
        if not plan.logprobs:
            return None
        is_written = plan.changes_logits or plan.is_typical or not logits.is_cuda
        if len(plan.logprobs) == len(plan.rows) and not is_written:
            return logits
        return logits.index_select(0, self._ship(plan.logprobs))


def _lines(flags: npt.NDArray[np.uint8], flag: int) -> list[int]:
    return np.flatnonzero(flags & flag).tolist()


def _token_logprobs(output: SampleOutput, num_lines: int) -> list[TokenLogprobs | None]:
    found = output.logprobs
    if found is None:
        return []
    entries: list[TokenLogprobs | None] = [None] * num_lines
    columns = zip(output.lines, output.num_logprobs, found.ids.tolist(), found.logprobs.tolist(), found.ranks.tolist(), strict=True)
    for line, count, ids, logprobs, rank in columns:
        entries[line] = TokenLogprobs(ids[0], logprobs[0], rank, ids[1 : 1 + count], logprobs[1 : 1 + count])
    return entries

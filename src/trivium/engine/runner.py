"""`Runner`: turns a `StepPlan` into device work and its outcome into a `StepResult`. It decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from trivium.engine.executor import StepHandle
from trivium.engine.graphs import DecodeGraphs
from trivium.engine.mixed import MixedGraphs
from trivium.engine.rows import RowTable, StepColumns
from trivium.engine.sampler import SampleOutput, SamplePlan, Sampler
from trivium.engine.staging import Staging
from trivium.errors import TriviumError
from trivium.models import Model
from trivium.ops.attention.base import AttentionBackend, KVCache
from trivium.ops.batch import ForwardBatch
from trivium.scheduling.step import NewRow, StepPlan, StepResult
from trivium.types import SamplingParams

logger = logging.getLogger(__name__)

PROMPT_LOGPROB_CHUNK = 128
"""Positions whose logits exist at once while prompt logprobs are computed."""


@dataclass(slots=True)
class _PromptLogprobs:
    row: int
    output: SampleOutput


@dataclass(slots=True)
class PendingStep:
    """A launched step: host copies under way, and the event that says they have arrived."""

    plan: StepPlan
    sampler: Sampler
    sampled_rows: list[int]
    output: SampleOutput | None
    prompt_logprobs: list[_PromptLogprobs] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    """Rows whose request can't run, with the reason."""
    event: torch.cuda.Event | None = None
    on_result: Callable[[], None] | None = None
    """Called once the step is over on the device."""

    def result(self) -> StepResult:
        if self.event is not None:
            self.event.synchronize()
        if self.on_result is not None:
            self.on_result()
        result = StepResult(step_id=self.plan.step_id, token_ids=[])
        if self.output is not None:
            host = self.sampler.finish(self.output)
            result.token_ids = host.token_ids
            result.logprobs = host.logprobs
            result.failed_rows = {self.sampled_rows[index]: reason for index, reason in host.failed.items()}
        result.failed_rows |= self.refused
        for part in self.prompt_logprobs:
            entries = [entry for entry in self.sampler.finish(part.output).logprobs if entry is not None]
            result.prompt_logprobs.setdefault(part.row, []).extend(entries)
        return result


class Runner:
    """Persistent rows, caches, model and sampler of one rank. Calls must come from one thread, in plan order."""

    def __init__(
        self,
        *,
        model: Model,
        caches: list[KVCache],
        attention: AttentionBackend,
        sampler: Sampler,
        rows: RowTable,
        device: torch.device,
    ) -> None:
        self.model = model
        self.caches = caches
        self.attention = attention
        self.sampler = sampler
        self.rows = rows
        self.device = device
        self.graphs: DecodeGraphs | None = None
        """Of steps in which every row decodes; set once captured, like those of other steps."""
        self.mixed_graphs: MixedGraphs | None = None
        self.staging = Staging(device)
        self._prompts: dict[int, NewRow] = {}
        """Rows whose prompt logprobs are wanted."""

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepHandle:
        refused = {new_row.row: reason for new_row in plan.new_rows if (reason := self._take_row(new_row))}
        self.rows.apply(plan, self.staging)
        if self.graphs is not None and not any(plan.num_fed) and len(plan.rows) <= self.graphs.buckets[-1]:
            return self._launch_decode(plan, self.graphs)
        columns = self.rows.columns(plan)
        pending = PendingStep(plan=plan, sampler=self.sampler, sampled_rows=[plan.rows[index] for index in columns.sampled], output=None)
        pending.refused = refused
        hidden = self._forward(pending, columns)
        self._prompt_logprobs(pending, columns, hidden)
        if pending.sampled_rows:
            last = self.staging.ship(columns.query_starts[columns.sampled + 1] - 1)
            logits = self.model.compute_logits(hidden.index_select(0, last))
            pending.output = self._sample(logits, self.sampler.plan(pending.sampled_rows))
        return self._record(pending)

    def _launch_decode(self, plan: StepPlan, graphs: DecodeGraphs) -> StepHandle:
        """Every row runs on the token it sampled last: the step is replayed, and the sampling too, unless a row wants more than a draw."""
        wanted = self.sampler.plan(plan.rows)
        if wanted.is_simple:
            return graphs.run(plan, is_filtered=wanted.is_filtered)
        logits, buffer = graphs.run_to_logits(plan)
        pending = PendingStep(plan=plan, sampler=self.sampler, sampled_rows=plan.rows, output=self._sample(logits, wanted))
        pending.on_result = lambda: graphs.give_back(buffer)
        return self._record(pending)

    def _forward(self, pending: PendingStep, columns: StepColumns) -> Tensor:
        """Hidden states of the step's tokens, and perhaps of padding behind them: replayed if there is a graph that fits, else launched."""
        graphs = self.mixed_graphs
        if graphs is None or (shape := graphs.shape_for(columns)) is None:
            return self.model.forward(self._build_batch(pending.plan, columns), self.caches)
        hidden, buffer = graphs.run(shape, pending.plan, columns)
        pending.on_result = lambda: graphs.give_back(buffer)
        return hidden

    def _record(self, pending: PendingStep) -> PendingStep:
        if self.device.type == "cuda":
            pending.event = torch.cuda.Event()
            pending.event.record()
        return pending

    def _take_row(self, new_row: NewRow) -> str | None:
        """Returns why the row can't run as it was asked to; then it runs with neutral parameters and its request fails with this step."""
        reason: str | None = None
        try:
            self.sampler.add_row(new_row)
        except Exception as error:
            logger.exception("request %s has parameters that can't be taken over", new_row.request_id)
            what = error.message if isinstance(error, TriviumError) else f"{type(error).__name__}."
            reason = f"The request's sampling parameters could not be used: {what}"
            params = SamplingParams(temperature=0.0)
            new_row = msgspec.structs.replace(new_row, params=params, stop_token_ids=[], bad_words_token_ids=[])
            self.sampler.add_row(new_row)
        if new_row.params.prompt_logprobs is not None:
            self._prompts[new_row.row] = new_row
        else:
            self._prompts.pop(new_row.row, None)
        return reason

    def _build_batch(self, plan: StepPlan, columns: StepColumns) -> ForwardBatch:
        ship = self.staging.ship
        rows_device = ship(columns.rows)
        batch = ForwardBatch(
            input_ids=self.rows.input_ids(plan, columns, rows_device, self.staging),
            positions=ship(columns.positions),
            slots=ship(columns.slots),
            block_tables=self.rows.gather_blocks(columns, rows_device),
            query_starts=ship(columns.query_starts.astype(np.int32)),
            seq_lens=ship(columns.seq_lens.astype(np.int32)),
            logits_indices=ship(columns.query_starts[columns.sampled + 1] - 1),
            num_decodes=int(np.count_nonzero(columns.num_tokens == 1)),
            max_query_len=int(columns.num_tokens.max()),
            max_seq_len=int(columns.seq_lens.max()),
            block_size=self.rows.block_size,
            query_starts_cpu=columns.query_starts.tolist(),
            seq_lens_cpu=columns.seq_lens.tolist(),
        )
        self.attention.plan(batch)
        return batch

    def _sample(self, logits: Tensor, wanted: SamplePlan) -> SampleOutput:
        row_index = self.staging.ship(np.array(wanted.rows, dtype=np.int64))
        output = self.sampler.run(logits, wanted, row_index)
        self.rows.last_tokens.index_copy_(0, row_index, output.token_ids.to(torch.int32))
        return output.to_host(self.staging.fetch)

    def _prompt_logprobs(self, pending: PendingStep, columns: StepColumns, hidden: Tensor) -> None:
        """Logprobs of the prompt tokens that this step's positions predict."""
        if not self._prompts:
            return
        for index, row in enumerate(pending.plan.rows):
            new_row = self._prompts.get(row)
            if new_row is None:
                continue
            prompt = new_row.prompt_token_ids
            first = pending.plan.num_computed[index]
            count = min(pending.plan.num_tokens[index], len(prompt) - 1 - first)
            top_k = new_row.params.prompt_logprobs
            assert top_k is not None
            for offset in range(0, count, PROMPT_LOGPROB_CHUNK):
                stop = min(offset + PROMPT_LOGPROB_CHUNK, count)
                start = int(columns.query_starts[index])
                logits = self.model.compute_logits(hidden[start + offset : start + stop])
                targets = self.staging.ship(np.array(prompt[first + offset + 1 : first + stop + 1], dtype=np.int64))
                output = self.sampler.prompt_logprobs(logits, targets, top_k).to_host(self.staging.fetch)
                pending.prompt_logprobs.append(_PromptLogprobs(row, output))

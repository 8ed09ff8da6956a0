"""Grammars of running requests: advanced by each sampled token, and applied to the logits as a mask.

A row's mask depends on the token it sampled last, which the host does not know yet when the next forward pass is launched. So the pass is launched
first; while it runs, the host reads the tokens of the step before, makes masks in threads and sends them; only the sampling waits for them.

All ranks make the same masks from the same tokens, so none of them travels. Only rank 0 looks at the time that masks take: it ends requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.staging import Staging
from trivium.errors import InvalidRequest
from trivium.ops.sampling.grammar_mask import WORD, apply_grammar_mask, mask_words
from trivium.scheduling.step import NewRow

MAX_MASK_THREADS: Final = 8
MIN_SHARED_ROWS: Final = 32
"""Fewer masks are made (9 us each) before other threads are awake."""
LOWEST: Final = -1e30
"""For the end of an answer that something else rules out: far below all logits, and still finite after any temperature."""
SLOW_STEP_S: Final = 0.02
"""Masks of one step that take longer make the next ones be timed row by row; ordinary ones take microseconds each."""
MAX_MASK_S: Final = 0.03
"""Processor time of one row's mask. A row that takes more twice ends: everybody in the batch waits for it."""
NUM_TIMED_STEPS: Final = 32

TOO_COMPLEX: Final = "The grammar became too complex to go on."
TOO_SLOW: Final = "The grammar takes too long for each token."


@dataclass(slots=True, eq=False)
class _Row:
    matcher: Any
    stop_token_ids: list[int]
    """What ends the answer: allowed where the grammar may end."""
    is_over: bool = False
    """The grammar's end has come: nothing but a stop token may follow."""
    num_slow: int = 0
    error: str = ""

    def consume(self, token_id: int) -> None:
        """A token that the grammar doesn't take is a stop token."""
        if self.is_over or self.error:
            return
        is_taken = self.matcher.try_consume_tokens([token_id]) == 1
        if self.matcher.is_error():
            self.error = TOO_COMPLEX
        else:
            self.is_over = not is_taken or self.matcher.is_stopped()


class GrammarTable:
    """The rows of one sampler that have a grammar. Calls come in step order."""

    def __init__(self, compiler: GrammarCompiler | None, vocab_size: int, staging: Staging, *, ends_slow_rows: bool = True) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._end = vocab_size if compiler is None else compiler.end_token_id
        self._staging = staging
        self._ends_slow_rows = ends_slow_rows
        self._rows: dict[int, _Row] = {}
        self._unread: list[tuple[list[_Row], Tensor, torch.cuda.Event | None]] = []
        """Tokens on their way to the host."""
        self._num_timed = 0
        """Steps still to be timed row by row."""
        self._num_threads = min(MAX_MASK_THREADS, (os.cpu_count() or 2) // 2)
        self._threads: Any = None

    def add_row(self, new_row: NewRow) -> None:
        """Take the row over, with or without a grammar; tokens from before a preemption have been seen. Raises `InvalidRequest`."""
        self._rows.pop(new_row.row, None)
        if not new_row.grammar:
            return
        if self._compiler is None:
            raise InvalidRequest("This engine has no tokenizer, without which there are no grammars.", param="structured_outputs")
        row = _Row(self._compiler.matcher(new_row.grammar), [token_id for token_id in new_row.stop_token_ids if token_id < self._vocab_size])
        for token_id in new_row.output_token_ids:
            row.consume(token_id)
        self._rows[new_row.row] = row

    def apply(self, logits: Tensor, rows: list[int], lines: list[int], lines_device: Tensor) -> dict[int, str]:
        """In place on logits [S, V] float32: what the grammars of `lines` don't allow becomes -inf. Where a grammar is over a stop token is always
        possible, whatever ruled it out. Returns the lines that can't go on, with the reason."""
        masked = [self._rows[rows[line]] for line in lines]
        masks = self.make_masks([rows[line] for line in lines])
        apply_grammar_mask(logits, lines_device, self._staging.ship(masks))
        ends = [(line, token_id) for line, row in zip(lines, masked, strict=True) if row.is_over for token_id in row.stop_token_ids]
        if ends:
            line_index, token_index = self._staging.ship(np.array(ends, dtype=np.int64).T.copy())
            logits[line_index, token_index] = logits[line_index, token_index].clamp(min=LOWEST)
        return {line: row.error for line, row in zip(lines, masked, strict=True) if row.error}

    def make_masks(self, rows: list[int]) -> npt.NDArray[np.int32]:
        """The host's work of a step: [rows, words]; bit i of word w says whether token w * WORD + i may follow. A grammar that can't go on allows
        nothing."""
        self._read()
        return self._masks([self._rows[row] for row in rows])

    def record(self, rows: list[int], token_ids: Tensor) -> None:
        """What these rows just sampled, [len(rows)] on the device; read when the next masks are made."""
        host, event = self._staging.fetch(token_ids), None
        if token_ids.is_cuda:
            event = torch.cuda.Event()
            event.record()
        self._unread.append(([self._rows[row] for row in rows], host, event))

    def _read(self) -> None:
        for rows, token_ids, event in self._unread:
            if event is not None:
                event.synchronize()
            for row, token_id in zip(rows, token_ids.tolist(), strict=True):
                row.consume(token_id)
        self._unread.clear()

    def _masks(self, rows: list[_Row]) -> npt.NDArray[np.int32]:
        masks = np.zeros((len(rows), mask_words(self._end + 1)), dtype=np.int32)
        going_on = [(row, index) for index, row in enumerate(rows) if not row.is_over and not row.error]
        begin = time.monotonic()
        if self._num_timed:
            self._num_timed -= 1
            for row, index in going_on:
                self._fill_timed(row, masks[index])
        elif self._num_threads > 1 and len(going_on) >= MIN_SHARED_ROWS:
            places = [(row.matcher, index) for row, index in going_on]
            self._executor().unsafe_compute_mask_ptr(places, masks.ctypes.data, masks.shape[1] * masks.itemsize, len(rows))
        else:
            for row, index in going_on:
                _fill(row, masks[index])
        if self._ends_slow_rows and time.monotonic() - begin > SLOW_STEP_S:
            self._num_timed = NUM_TIMED_STEPS
        for index, row in enumerate(rows):
            self._open_end(row, masks[index])
        return masks

    def _fill_timed(self, row: _Row, mask: npt.NDArray[np.int32]) -> None:
        begin = time.thread_time()
        _fill(row, mask)
        if time.thread_time() - begin > MAX_MASK_S:
            row.num_slow += 1
            if row.num_slow > 1:
                row.error = TOO_SLOW

    def _open_end(self, row: _Row, mask: npt.NDArray[np.int32]) -> None:
        """Stop tokens, those that are ordinary text included, are allowed where the grammar may end, and only there unless nothing else is."""
        if not row.error and row.matcher.is_error():
            row.error = TOO_COMPLEX
        if row.error:
            mask[:] = 0
            return
        bits = mask.view(np.uint32)
        if row.is_over or bits[self._end // WORD] >> (self._end % WORD) & 1:
            for token_id in row.stop_token_ids:
                bits[token_id // WORD] |= _BITS[token_id % WORD]
            return
        found = [token_id for token_id in row.stop_token_ids if bits[token_id // WORD] & _BITS[token_id % WORD]]
        for token_id in found:
            bits[token_id // WORD] &= ~_BITS[token_id % WORD]
        if found and not bits.any():
            for token_id in found:
                bits[token_id // WORD] |= _BITS[token_id % WORD]

    def _executor(self) -> Any:
        if self._threads is None:
            import llguidance

            executor: Callable[..., Any] = llguidance.LLExecutor
            self._threads = executor(num_threads=self._num_threads)
        return self._threads


_BITS: Final = [np.uint32(1 << place) for place in range(WORD)]


def _fill(row: _Row, mask: npt.NDArray[np.int32]) -> None:
    row.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

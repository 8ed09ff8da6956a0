"""Sampling parameters of the running requests: one row each, on the device where kernels read them, mirrored on the host where plans are made."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.staging import Staging
from trivium.ops.sampling.penalties import apply_on_cpu, reset_state
from trivium.ops.sampling.table import (
    MIN_P,
    NEUTRAL,
    NUM_INTS,
    REPETITION,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    SamplingTable,
)
from trivium.scheduling.step import NewRow
from trivium.types import SamplingParams

FILTER = 1
"""top-k, top-p or min-p."""
TYPICAL = 2
PENALTY = 4
EDIT = 8
"""Allowed tokens, bad words or logit bias: logits change at listed ids."""
BAD_WORDS = 16
LOGPROBS = 32
GRAMMAR = 64


def stream_seed(params: SamplingParams, request_id: str, default_seed: int) -> int:
    """The request's seed as int64 bits. An unseeded request gets one from its id, so that it too draws the same tokens again after a preemption."""
    seed = params.seed
    if seed is None:
        digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=default_seed.to_bytes(16, "little", signed=True)).digest()
        seed = int.from_bytes(digest, "little")
    return seed - 2**64 if seed >= 2**63 else seed


def param_values(params: SamplingParams, vocab_size: int) -> tuple[float, ...]:
    """The row of `SamplingTable.floats` for `params`; greedy rows keep no filters, as in vLLM."""
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    if params.is_greedy:
        return (*NEUTRAL[:REPETITION], *penalties)
    top_k = params.top_k if params.top_k < vocab_size else 0
    return (params.temperature, params.top_p, float(top_k), params.min_p, params.typical_p, *penalties)


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def feature_flags(values: tuple[float, ...], new_row: NewRow) -> int:
    """Which stages of the sampler the row needs."""
    params = new_row.params
    flags = 0
    if values[TOP_P] < 1.0 or values[TOP_K] > 0.0 or values[MIN_P] > 0.0:
        flags |= FILTER
    if values[TYPICAL_P] < 1.0:
        flags |= TYPICAL
    if has_penalties(params):
        flags |= PENALTY
    if params.logit_bias or params.allowed_token_ids or new_row.bad_words_token_ids:
        flags |= EDIT
    if new_row.bad_words_token_ids:
        flags |= BAD_WORDS
    if params.logprobs is not None:
        flags |= LOGPROBS
    if new_row.grammar:
        flags |= GRAMMAR
    return flags


class ParamTable:
    """Row `max_num_seqs` is neutral (greedy, nothing else) and belongs to nobody: padding of captured graphs points at it."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device, staging: Staging, default_seed: int) -> None:
        num_rows = max_num_seqs + 1
        self._vocab_size = vocab_size
        self._staging = staging
        self._default_seed = default_seed
        floats = torch.tensor(NEUTRAL, dtype=torch.float32).repeat(num_rows, 1)
        self.device_rows = SamplingTable(floats.to(device), torch.zeros(num_rows, NUM_INTS, dtype=torch.int64, device=device))
        self.flags: npt.NDArray[np.uint8] = np.zeros(num_rows, dtype=np.uint8)
        self.num_outputs: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        """Tokens sampled so far, those of steps in flight included: exact, since each step adds one."""
        self.min_tokens: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.num_logprobs: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        """Candidates beside the sampled token, where `flags` has LOGPROBS."""
        self._dirty: dict[int, tuple[tuple[float, ...], tuple[int, ...]]] = {}

    def add_row(self, new_row: NewRow, seen_address: int) -> None:
        """Take the row over on the host; the device follows at `flush`."""
        row, params = new_row.row, new_row.params
        values = param_values(params, self._vocab_size)
        num_outputs = len(new_row.output_token_ids)
        self._dirty[row] = (values, (stream_seed(params, new_row.request_id, self._default_seed), num_outputs, seen_address, 0))
        self.flags[row] = feature_flags(values, new_row)
        self.num_outputs[row] = num_outputs
        self.min_tokens[row] = params.min_tokens if new_row.stop_token_ids else 0
        wanted = params.logprobs or 0
        self.num_logprobs[row] = self._vocab_size if wanted < 0 else min(wanted, self._vocab_size)

    def flush(self) -> None:
        """Write the rows taken over since the last call to the device. Runs outside captured graphs."""
        if not self._dirty:
            return
        rows = list(self._dirty)
        floats = np.array([values for values, _ in self._dirty.values()], dtype=np.float32)
        ints = np.array([values for _, values in self._dirty.values()], dtype=np.int64)
        self._dirty.clear()
        index = self._staging.ship(np.array(rows, dtype=np.int64))
        self.device_rows.floats.index_copy_(0, index, self._staging.ship(floats))
        self.device_rows.ints.index_copy_(0, index, self._staging.ship(ints))


class PenaltyTable:
    """What requests with penalties have seen: `[vocab]` int32 for each, allocated in chunks that never move, so that kernels can keep addresses."""

    def __init__(self, vocab_size: int, device: torch.device, staging: Staging) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._staging = staging
        self._states: dict[int, tuple[SamplingParams, Tensor]] = {}
        """By row."""
        self._free: list[Tensor] = []
        self._num_states = 0

    def add_row(self, new_row: NewRow) -> int:
        """Rebuild the row's state from its prompt and what it sampled before a preemption. Returns the state's address on a GPU, else 0."""
        _, state = self._states.get(new_row.row) or (None, self._take())
        self._states[new_row.row] = (new_row.params, state)
        prompt = self._staging.ship(np.array(new_row.prompt_token_ids, dtype=np.int64))
        output = self._staging.ship(np.array(new_row.output_token_ids, dtype=np.int64))
        reset_state(state, prompt, output)
        return state.data_ptr() if state.is_cuda else 0

    def remove_row(self, row: int) -> None:
        found = self._states.pop(row, None)
        if found is not None:
            self._free.append(found[1])

    def apply_on_cpu(self, logits: Tensor, rows: list[int]) -> None:
        """In place on logits [S, V] float32; line i by the state of `rows[i]`, if it has one."""
        for line, row in enumerate(rows):
            if row in self._states:
                params, state = self._states[row]
                apply_on_cpu(logits[line], state, params.repetition_penalty, params.frequency_penalty, params.presence_penalty)

    def count_on_cpu(self, rows: list[int], outcome: list[int]) -> None:
        """One more of each token that is not negative."""
        for row, token in zip(rows, outcome, strict=True):
            if row in self._states and token >= 0:
                self._states[row][1][token] += 1

    def _take(self) -> Tensor:
        if not self._free:
            count = min(max(self._num_states, 4), 32)
            stride = -(-self._vocab_size // 4) * 4  # kernels read 16 bytes at a time
            chunk = torch.zeros(count, stride, dtype=torch.int32, device=self._device)
            self._free = [chunk[index, : self._vocab_size] for index in reversed(range(count))]
            self._num_states += count
        return self._free.pop()

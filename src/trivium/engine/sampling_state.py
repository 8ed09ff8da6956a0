"""Sampling parameters of the running requests: one row each, on the device where kernels read them, mirrored on the host where plans are made."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trivium.engine.staging import Staging
from trivium.ops.sampling.filters import DrawParams
from trivium.ops.sampling.penalties import reset_state
from trivium.scheduling.step import NewRow
from trivium.types import SamplingParams

TEMPERATURE, TOP_P, TOP_K, MIN_P, TYPICAL_P, REPETITION, FREQUENCY, PRESENCE = range(8)
"""Columns of `ParamTable.floats`. A top_k of 0 is off; its values are exact in float32."""
SEED, COUNTER = range(2)
"""Columns of `ParamTable.ints`."""

RANDOM = 1
"""The row's temperature is above 0."""
FILTER = 2
"""top-k, top-p or min-p."""
TYPICAL = 4
PENALTY = 8
EDIT = 16
"""Allowed tokens, bad words or logit bias: logits change at listed ids."""
BAD_WORDS = 32
LOGPROBS = 64

_NEUTRAL = (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)


def stream_seed(params: SamplingParams, request_id: str, default_seed: int) -> int:
    """The request's seed as int64 bits. An unseeded request gets one from its id, so that it too draws the same tokens again after a preemption."""
    seed = params.seed
    if seed is None:
        digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=default_seed.to_bytes(16, "little", signed=True)).digest()
        seed = int.from_bytes(digest, "little")
    return seed - 2**64 if seed >= 2**63 else seed


def param_values(params: SamplingParams, vocab_size: int) -> tuple[float, ...]:
    """The row of `ParamTable.floats` for `params`; greedy rows keep no filters, as in vLLM."""
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    if params.is_greedy:
        return (*_NEUTRAL[:REPETITION], *penalties)
    top_k = params.top_k if params.top_k < vocab_size else 0
    return (params.temperature, params.top_p, float(top_k), params.min_p, params.typical_p, *penalties)


def feature_flags(values: tuple[float, ...], new_row: NewRow) -> int:
    """Which stages of the sampler the row needs."""
    params = new_row.params
    flags = RANDOM if values[TEMPERATURE] > 0.0 else 0
    if values[TOP_P] < 1.0 or values[TOP_K] > 0.0 or values[MIN_P] > 0.0:
        flags |= FILTER
    if values[TYPICAL_P] < 1.0:
        flags |= TYPICAL
    if values[REPETITION:] != _NEUTRAL[REPETITION:]:
        flags |= PENALTY
    if params.logit_bias or params.allowed_token_ids or new_row.bad_words_token_ids:
        flags |= EDIT
    if new_row.bad_words_token_ids:
        flags |= BAD_WORDS
    if params.logprobs is not None:
        flags |= LOGPROBS
    return flags


class ParamTable:
    """Row `max_num_seqs` is neutral (greedy, nothing else) and belongs to nobody: padding of captured graphs points at it."""

    def __init__(self, vocab_size: int, max_num_seqs: int, device: torch.device, staging: Staging, default_seed: int) -> None:
        num_rows = max_num_seqs + 1
        self._vocab_size = vocab_size
        self._staging = staging
        self._default_seed = default_seed
        neutral = torch.tensor(_NEUTRAL, dtype=torch.float32)
        self.floats: Tensor = neutral.repeat(num_rows, 1).to(device)  # [rows, 8]
        self.ints: Tensor = torch.zeros(num_rows, 2, dtype=torch.int64, device=device)  # [rows, 2]
        self.draw = DrawParams(
            temperature=self.floats[:, TEMPERATURE],
            top_k=self.floats[:, TOP_K],
            top_p=self.floats[:, TOP_P],
            min_p=self.floats[:, MIN_P],
            typical_p=self.floats[:, TYPICAL_P],
            seeds=self.ints[:, SEED],
            counters=self.ints[:, COUNTER],
        )
        """The same memory, column by column."""
        self.flags: npt.NDArray[np.uint8] = np.zeros(num_rows, dtype=np.uint8)
        self.num_outputs: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        """Tokens sampled so far, those of steps in flight included: exact, since each step adds one."""
        self.min_tokens: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        self.num_logprobs: npt.NDArray[np.int64] = np.zeros(num_rows, dtype=np.int64)
        """Candidates beside the sampled token, where `flags` has LOGPROBS."""
        self._dirty: dict[int, tuple[tuple[float, ...], int]] = {}

    def add_row(self, new_row: NewRow) -> int:
        """Take the row over on the host; the device follows at `flush`. Returns the row's flags."""
        row, params = new_row.row, new_row.params
        values = param_values(params, self._vocab_size)
        self._dirty[row] = (values, stream_seed(params, new_row.request_id, self._default_seed))
        self.flags[row] = feature_flags(values, new_row)
        self.num_outputs[row] = len(new_row.output_token_ids)
        self.min_tokens[row] = params.min_tokens if new_row.stop_token_ids else 0
        wanted = params.logprobs or 0
        self.num_logprobs[row] = self._vocab_size if wanted < 0 else min(wanted, self._vocab_size)
        return int(self.flags[row])

    def flush(self) -> None:
        """Write the rows taken over since the last call to the device. Runs outside captured graphs."""
        if not self._dirty:
            return
        rows = list(self._dirty)
        floats = np.array([values for values, _ in self._dirty.values()], dtype=np.float32)
        ints = np.array([(seed, self.num_outputs[row]) for row, (_, seed) in self._dirty.items()], dtype=np.int64)
        self._dirty.clear()
        index = self._staging.ship(np.array(rows, dtype=np.int64))
        self.floats.index_copy_(0, index, self._staging.ship(floats))
        self.ints.index_copy_(0, index, self._staging.ship(ints))


class PenaltyTable:
    """What requests with penalties have seen: a slot of `[vocab]` int32 for each, allocated when the first such request comes."""

    def __init__(self, vocab_size: int, device: torch.device, staging: Staging) -> None:
        self._staging = staging
        self.state: Tensor = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._slots: dict[int, int] = {}
        """Row to slot."""
        self._free: list[int] = []

    def add_row(self, new_row: NewRow) -> None:
        """Rebuild the row's state from its prompt and what it sampled before a preemption."""
        slot = self._slots.get(new_row.row)
        if slot is None:
            slot = self._slots[new_row.row] = self._take_slot()
        prompt = self._staging.ship(np.array(new_row.prompt_token_ids, dtype=np.int64))
        output = self._staging.ship(np.array(new_row.output_token_ids, dtype=np.int64))
        reset_state(self.state[slot], prompt, output)

    def remove_row(self, row: int) -> None:
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def slots(self, rows: list[int]) -> list[int]:
        return [self._slots[row] for row in rows]

    def _take_slot(self) -> int:
        if not self._free:
            size = len(self.state)
            self.state = torch.cat((self.state, self.state.new_zeros(max(size, 4), self.state.shape[1])))
            self._free = list(range(len(self.state) - 1, size - 1, -1))
        return self._free.pop()

"""How each request is sampled: one row a request, in two small device tensors that kernels read by row."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

TEMPERATURE, TOP_P, TOP_K, MIN_P, TYPICAL_P, REPETITION, FREQUENCY, PRESENCE = range(8)
"""Columns of `SamplingTable.floats`. Temperature 0: greedy; off are top_k 0, min_p 0 and top_p, typical_p 1; top_k is exact in float32."""
SEED, COUNTER, SEEN = range(3)
"""Columns of `SamplingTable.ints`: seed and counter of the random stream; on a GPU the address of the row's `penalties` state, 0 for none."""
NUM_FLOATS = 8
NUM_INTS = 4
NEUTRAL = (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """R rows: of all requests, or those of a step's lines in order (`select`)."""

    floats: Tensor  # [R, NUM_FLOATS] float32
    ints: Tensor  # [R, NUM_INTS] int64

    def select(self, rows: Tensor) -> SamplingTable:
        """A copy of these rows, [len(rows)] int64."""
        return SamplingTable(self.floats.index_select(0, rows), self.ints.index_select(0, rows))

    @property
    def temperature(self) -> Tensor:
        return self.floats[:, TEMPERATURE]

    @property
    def top_p(self) -> Tensor:
        return self.floats[:, TOP_P]

    @property
    def top_k(self) -> Tensor:
        return self.floats[:, TOP_K]

    @property
    def min_p(self) -> Tensor:
        return self.floats[:, MIN_P]

    @property
    def typical_p(self) -> Tensor:
        return self.floats[:, TYPICAL_P]

    @property
    def seeds(self) -> Tensor:
        return self.ints[:, SEED]

    @property
    def counters(self) -> Tensor:
        return self.ints[:, COUNTER]

    def is_filtered(self) -> Tensor:
        """[R] bool: rows with a filter that can matter."""
        return ((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0) | (self.typical_p < 1)) & (self.temperature > 0)

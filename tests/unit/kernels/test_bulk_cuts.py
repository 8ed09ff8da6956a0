"""How the Gluon products for few rows are cut; the kernel itself runs on Hopper only (tests/gpu)."""

from __future__ import annotations

import pytest
from helpers_kernels import randn

from trivium.ops.triton import linear
from trivium.ops.triton.bulk import BulkConfig, config_for, cut

SHARED_MEMORY = 227 << 10


@pytest.mark.parametrize(
    ("tiles", "steps", "per_program"),
    [
        (96, 32, 32),  # Llama-3-8B's QKV: 96 programs with a whole tile each
        (224, 32, 64),  # gate-up: 112 programs with two
        (2004, 32, 512),  # head: 126 programs with 16
        (64, 32, 16),  # output: halves
        (64, 112, 56),  # down: halves
        (48, 32, 16),
        (80, 40, 25),  # neither fits: equal runs across tiles
        (76, 7, 5),
    ],
)
def test_programs_take_whole_tiles_or_equal_parts(tiles: int, steps: int, per_program: int) -> None:
    assert cut(tiles, steps, 132) == per_program


def test_every_step_has_a_program() -> None:
    for tiles in range(1, 400, 7):
        for steps in (1, 2, 7, 32, 112):
            per_program = cut(tiles, steps, 132)
            programs = -(-tiles * steps // per_program)
            assert 1 <= programs <= 132
            assert programs * per_program >= tiles * steps


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("block_m", [16, 32, 64, 128])
def test_rings_fit(block_m: int, halves: int) -> None:
    config = config_for(block_m)
    stages = config.stages(block_m, halves)
    assert stages >= 3
    assert stages * (config.block_n * halves + block_m) * config.block_k * 2 <= SHARED_MEMORY
    assert BulkConfig(ring_bytes=1 << 10).stages(block_m, halves) == 2


def test_not_chosen_without_hopper() -> None:
    if randn(1).is_cuda:
        pytest.skip("there is a GPU")
    assert linear.way(32, randn(4096, 4096).bfloat16(), randn(1).bfloat16().dtype) == "library"

"""Steps with prompts as captured graphs run them: padded, with the split of rows and tokens in device arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers_kernels import DEVICE, assert_close, make_cache, randn

from trivium.engine.mixed import MixedShape, build_batch, fill_inputs, mixed_shapes
from trivium.engine.rows import RowTable
from trivium.ops.attention.base import AttentionArgs
from trivium.ops.attention.invariant import InvariantAttention
from trivium.ops.attention.reference import ReferenceAttention
from trivium.ops.attention.triton import TritonAttention
from trivium.ops.batch import ForwardBatch
from trivium.scheduling.step import StepPlan

PAGE = 8
ARGS = AttentionArgs(num_heads=4, num_kv_heads=2, head_dim=32, scale=32**-0.5)


def make_plan(num_tokens: list[int], num_computed: list[int], num_fed: list[int]) -> StepPlan:
    count = len(num_tokens)
    return StepPlan(
        step_id=0,
        new_rows=[],
        rows=[7 - row for row in range(count)],
        num_tokens=num_tokens,
        num_computed=num_computed,
        num_fed=num_fed,
        token_ids=list(range(100, 100 + sum(num_fed))),
        samples=[True] * count,
        block_starts=[0] * count,
        new_blocks=[[]] * count,
    )


def make_rows() -> RowTable:
    rows = RowTable(8, 12, PAGE, DEVICE)
    rows.blocks[:8] = 1 + np.random.default_rng(0).permutation(8 * 12).reshape(8, 12)
    rows.blocks_device = torch.from_numpy(rows.blocks).to(DEVICE)
    rows.last_tokens = torch.arange(50, 59, dtype=torch.int32, device=DEVICE)
    return rows


def padded_batch(plan: StepPlan, rows: RowTable, shape: MixedShape) -> ForwardBatch:
    inputs = np.full(shape.num_inputs, 12345, dtype=np.int64)  # what an earlier step left must not matter
    fill_inputs(inputs, shape, plan, rows.columns(plan))
    return build_batch(torch.from_numpy(inputs).to(DEVICE), shape, rows, max_model_len=12 * PAGE)


PLANS = {
    "decodes and prompts": make_plan([1, 1, 1, 5, 20], [30, 3, 0, 16, 0], [0, 0, 1, 5, 20]),
    "prompts alone": make_plan([9, 2], [0, 40], [9, 2]),
    "single tokens alone": make_plan([1, 1], [11, 0], [0, 1]),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("shape", [MixedShape(32, 4, 3), MixedShape(48, 8, 8)])
def test_padded_steps_compute_what_the_plan_says(name: str, shape: MixedShape) -> None:
    plan, rows = PLANS[name], make_rows()
    columns = rows.columns(plan)
    batch = padded_batch(plan, rows, shape)
    count = len(columns.positions)
    expected_ids, fed = [], iter(plan.token_ids)
    for row, tokens, num_fed in zip(plan.rows, plan.num_tokens, plan.num_fed, strict=True):
        expected_ids += [next(fed) for _ in range(tokens)] if num_fed else [50 + row]
    assert batch.input_ids[:count].tolist() == expected_ids
    assert batch.positions[:count].tolist() == columns.positions.tolist()
    assert batch.slots[:count].tolist() == columns.slots.tolist()
    assert (batch.slots[count:] == -1).all(), "padding writes to no slot"

    num_decodes = plan.num_tokens.count(1)
    assert batch.query_starts[num_decodes : shape.decodes + 1].eq(num_decodes).all(), "rows of padding own no token of a prompt"
    assert batch.query_starts.diff().ge(0).all()

    cache, query = make_cache(8 * 12 + 1, 2, PAGE, 32), randn(shape.tokens, 4, 32)
    plain = ForwardBatch(
        input_ids=batch.input_ids[:count],
        positions=batch.positions[:count],
        slots=batch.slots[:count],
        block_tables=rows.blocks_device[torch.from_numpy(columns.rows).to(DEVICE)],
        query_starts=torch.from_numpy(columns.query_starts).to(DEVICE, torch.int32),
        seq_lens=torch.from_numpy(columns.seq_lens).to(DEVICE, torch.int32),
        logits_indices=batch.logits_indices,
        num_decodes=0,
        max_query_len=max(plan.num_tokens),
        max_seq_len=96,
        block_size=PAGE,
    )
    reference = ReferenceAttention()
    reference.plan(plain)
    expected = reference.forward(query[:count], cache, plain, ARGS)
    for backend in (TritonAttention(DEVICE), InvariantAttention(DEVICE)):
        backend.plan(batch)
        assert_close(backend.forward(query, cache, batch, ARGS)[:count], expected)


def test_shapes_hold_what_the_scheduler_may_ask_for() -> None:
    for max_num_seqs, budget in ((1024, 8192), (7, 512), (256, 2048), (1, 32)):
        shapes = mixed_shapes(max_num_seqs, budget)
        assert [shape.tokens for shape in shapes] == sorted({shape.tokens for shape in shapes})
        assert all(shape.decodes <= min(shape.tokens, max_num_seqs) and shape.tokens <= budget for shape in shapes)
    assert mixed_shapes(4, 16) == []

"""Steps as captured graphs run them, without a GPU: a stand-in for a graph computes again, in place, what the graph would replay.

What is tested is all around the graphs: how steps are laid out and padded, which rows each draw is made for, what is left for the next step.
The kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers_engine import InProcessEngine
from helpers_modes import GREEDY, make_prompts
from torch import Tensor

from trivium.engine import graphs as graphs_module
from trivium.engine.graphs import DecodeGraphs, GraphStep, _Captured
from trivium.engine.mixed import MixedGraphs, MixedShape, choose_shape, mixed_shapes
from trivium.types import SamplingParams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has the real ones")
SHAPES = [MixedShape(16, 4, 4), MixedShape(64, 7, 7), MixedShape(256, 7, 7)]


class Again:
    """`replay` computes `run` again and writes what it makes where the first result is."""

    def __init__(self, run: Callable[[], Tensor], target: Tensor | None = None) -> None:
        self._run = run
        self.result = run() if target is None else target
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.result.copy_(self._run())


class NoEvent:
    """On a CPU a step is over when it has been launched."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture(autouse=True)
def without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    event: Any = NoEvent()
    monkeypatch.setattr(graphs_module, "GraphStep", lambda plan, buffer, pool: GraphStep(plan, buffer, pool, event))


def stand_in_for_graphs(engine: InProcessEngine) -> tuple[DecodeGraphs, MixedGraphs]:
    runner: Any = engine.engine.executor._runner  # type: ignore[attr-defined]
    length = engine.engine.ready.max_model_len
    parts = (runner.model, runner.caches, runner.attention, runner.rows)
    with torch.inference_mode():
        decode = DecodeGraphs(*parts, runner.sampler, buckets=[1, 4, 7], max_model_len=length, pool=None)
        for bucket in decode.buckets:
            decode._clear_inputs(bucket)
            step = Again(lambda bucket=bucket: decode._drawn_step(bucket))
            logits = step.result

            def draw(logits: Tensor = logits) -> Tensor:
                decode._draw(logits, is_filtered=True)
                return logits

            widen: Any = Again(lambda logits=logits: logits, decode._logits[:bucket])
            again: Any = (step, Again(draw, logits), widen)
            decode._captured[bucket] = _Captured(*again)
        mixed = MixedGraphs(*parts, shapes=SHAPES, max_model_len=length, pool=None)
        for shape in SHAPES:
            mixed._clear_inputs(shape)
            graph: Any = Again(lambda shape=shape: mixed._forward(shape))
            mixed._captured[shape] = graph, graph.result
    runner.rows.last_tokens.zero_()
    runner.graphs, runner.mixed_graphs = decode, mixed
    return decode, mixed


@pytest.fixture(params=[{}, {"num_gpu_blocks_override": 17}, {"max_num_batched_tokens": 23}], ids=["plain", "preempted", "chunks"])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[InProcessEngine, InProcessEngine, DecodeGraphs, MixedGraphs]]:
    args = {"attention_backend": "reference", "batch_invariant": False, "enable_prefix_caching": False, **request.param}
    plain, graphed = InProcessEngine("llama", **args), InProcessEngine("llama", **args)
    yield plain, graphed, *stand_in_for_graphs(graphed)
    plain.close()
    graphed.close()


def test_replayed_steps_give_the_same_tokens(engines: tuple[InProcessEngine, InProcessEngine, DecodeGraphs, MixedGraphs]) -> None:
    plain, graphed, decode, mixed = engines
    prompts = make_prompts()[:5]
    kinds = {
        "greedy": [SamplingParams(temperature=0.0, max_tokens=10)] * 5,
        "filtered": [SamplingParams(temperature=0.8, top_p=0.9, seed=row, max_tokens=10, presence_penalty=0.5) for row in range(5)],
        "each its own": [
            SamplingParams(temperature=0.0, max_tokens=6),
            SamplingParams(temperature=1.0, seed=3, max_tokens=10),
            SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, prompt_logprobs=1, logit_bias={5: 2.0}),
            SamplingParams(temperature=0.7, top_k=8, seed=4, max_tokens=14),
            SamplingParams(temperature=1.0, typical_p=0.9, seed=5, max_tokens=8),
        ],
    }
    for name, params in kinds.items():
        assert graphed.run(prompts, params) == plain.run(prompts, params), name
    steps: Any = decode._captured.values()
    assert all(sum(getattr(captured, part).num_replays for captured in steps) for part in ("step", "draw_filtered", "widen"))
    graphs: Any = mixed._captured.values()
    assert sum(graph.num_replays for graph, _ in graphs)


@pytest.mark.parametrize(
    ("num_tokens", "num_decodes", "num_prompts", "expected"),
    [
        (5, 0, 1, 32),
        (543, 31, 1, 640),
        (500, 300, 1, None),  # a small graph has room for 256 that decode, and more padding than an eighth is too much
        (1150, 300, 1, 1280),
        (130, 0, 65, None),  # more prompts than any graph has
        (1900, 0, 1, 2048),
        (2060, 0, 1, None),
        (4000, 100, 8, 4096),
        (8000, 0, 16, None),
    ],
)
def test_a_step_goes_to_the_smallest_graph_it_fits_into(num_tokens: int, num_decodes: int, num_prompts: int, expected: int | None) -> None:
    shape = choose_shape(mixed_shapes(1024, 8192), num_tokens, num_decodes, num_prompts)
    assert (shape.tokens if shape else None) == expected


def test_greedy_alone_is_greedy_in_company() -> None:
    """The padding row shares a bucket with real ones and must leave no trace in them."""
    engine = InProcessEngine("llama", attention_backend="reference", batch_invariant=False, enable_prefix_caching=False)
    prompts = make_prompts()[:3]
    alone = [engine.run([prompt], GREEDY)[0] for prompt in prompts]
    stand_in_for_graphs(engine)
    assert engine.run(prompts, GREEDY) == alone
    assert [engine.run([prompt], GREEDY)[0] for prompt in prompts] == alone
    engine.close()

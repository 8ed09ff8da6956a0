"""Schedulers in front of real Python models in processes of their own: what clocks and processes add to the decisions tested in tests/null."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from helpers_tensor_models import Caller, context, tensor, values_of
from helpers_worker import write_python_model

from trivium.backends.tensor_base import Inference, TensorModel
from trivium.backends.tensor_registry import create_tensor_model
from trivium.batching.statistics import FailureReason
from trivium.errors import DeadlineExceeded, TriviumError
from trivium.infer import InferRequest
from trivium.protocol.model_config import ModelConfig

COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.seconds = float(json.loads(args["model_config"])["parameters"]["sleep"]["string_value"])
    def execute(self, requests):
        time.sleep(self.seconds)
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (x < 0).any():
                os.kill(os.getpid(), signal.SIGKILL)
            y = np.stack([x[:, 0], np.full(len(x), len(requests), np.float32)], axis=1)
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", y)]))
        return answers
"""


@asynccontextmanager
async def serving(folder: Path, *, sleep_s: float, extra: str = "", count: int = 1) -> AsyncIterator[TensorModel]:
    """OUT is IN and the number of requests in the batch."""
    write_python_model(folder, COUNTING)
    config = ModelConfig()
    text = f"""
        name: "model" backend: "python" max_batch_size: 64
        input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }} ]
        instance_group [ {{ name: "model" kind: KIND_CPU count: {count} }} ]
        parameters [ {{ key: "sleep" value {{ string_value: "{sleep_s}" }} }} ]
        {extra}
    """
    text_format.Parse(text, config)
    loaded = await create_tensor_model(config, 1, folder / "1", context(folder, Caller(), allow_python_models=True, auto_complete=False))
    try:
        yield loaded.model
    finally:
        await loaded.model.close()


def ask(value: float, **fields: object) -> InferRequest:
    return InferRequest(model="model", inputs=[tensor("IN", value)], **fields)  # type: ignore[arg-type]


async def answer(inference: Inference) -> list[float]:
    [response] = [response async for response in inference]
    return values_of(response.outputs[0])


async def closed_loop(model: TensorModel, num_clients: int, num_each: int) -> list[float]:
    """Latencies in milliseconds of clients that send one request after the other."""
    latencies: list[float] = []

    async def client() -> None:
        for _ in range(num_each):
            begin = time.perf_counter()
            await answer(model.infer(ask(1)))
            latencies.append(1000 * (time.perf_counter() - begin))

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return latencies


POLICIES: Sequence[str] = (
    "dynamic_batching { default_queue_policy { max_queue_size: 1000 } }",
    "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
    "dynamic_batching { default_queue_policy { default_timeout_microseconds: 5000000 timeout_action: DELAY } }",
)


@pytest.mark.parametrize("policy", POLICIES)
async def test_queue_policies_and_priorities_do_not_stall(tmp_path: Path, policy: str) -> None:
    async with serving(tmp_path, sleep_s=0.002, extra=policy) as model:
        for num_clients in (1, 8):
            latencies = await closed_loop(model, num_clients, 200 // num_clients)
            # Triton stalls for 500 ms about once in twenty; a busy test machine for some ms.
            assert np.percentile(latencies, 99) < 100


async def test_a_timeout_on_a_busy_instance_is_answered_within_a_tenth_more(tmp_path: Path) -> None:
    policy = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 } }"
    async with serving(tmp_path, sleep_s=1.0, extra=policy) as model:
        busy = model.infer(ask(1))
        await asyncio.sleep(0.05)
        begin = time.perf_counter()
        with pytest.raises(DeadlineExceeded, match="^Request timeout expired$"):
            await answer(model.infer(ask(2)))
        assert 0.2 <= time.perf_counter() - begin < 0.25
        assert await answer(busy) == [1, 1]
        assert model.statistics.failures[FailureReason.REJECTED] == 1


async def test_clients_that_wait_for_their_answers_share_batches(tmp_path: Path) -> None:
    async with serving(tmp_path, sleep_s=0.01, extra="dynamic_batching { }") as model:
        await closed_loop(model, 8, 40)
        statistics = model.statistics
        assert statistics.success.count == 320
        # Two groups that take turns would make it 4.
        assert statistics.inference_count / statistics.execution_count > 6


async def test_a_process_that_dies_fails_its_own_batch_and_is_back_within_two_seconds(tmp_path: Path) -> None:
    async with serving(tmp_path, sleep_s=0.02, extra="dynamic_batching { preferred_batch_size: [ 1 ] }", count=2) as model:
        good = [model.infer(ask(number)) for number in range(6)]
        begin = time.perf_counter()
        bad = model.infer(ask(-1))
        more = [model.infer(ask(number)) for number in range(6, 12)]
        with pytest.raises(TriviumError, match="ended unexpectedly"):
            await answer(bad)
        results = [await answer(inference) for inference in (*good, *more)]
        assert [result[0] for result in results] == list(range(12))
        while model.statistics.execution_count < 40:
            await asyncio.gather(*(answer(model.infer(ask(1))) for _ in range(4)))
        assert time.perf_counter() - begin < 3
        assert model.is_alive


async def test_columns_of_the_statistics_add_up_to_what_a_request_took(tmp_path: Path) -> None:
    async with serving(tmp_path, sleep_s=0.005) as model:
        await closed_loop(model, 4, 20)
        statistics = model.statistics
        parts = sum(duration.ns for duration in (statistics.queue, statistics.compute_input, statistics.compute_infer, statistics.compute_output))
        assert statistics.success.count == statistics.queue.count == statistics.compute_infer.count == 80
        assert abs(parts - statistics.success.ns) < 0.03 * statistics.success.ns
        assert statistics.compute_infer.ns / 80 > 5_000_000
        # With four clients each request waits for about three others, also those sent ahead to the process.
        assert statistics.queue.ns > 2 * statistics.compute_infer.ns

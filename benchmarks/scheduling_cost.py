"""What scheduling one tensor request costs the server process: validation, queue, batcher, statistics and delivery, with a model that does nothing.

    python benchmarks/scheduling_cost.py

Prints microseconds of processor time a request, so that a busy machine changes little, for each kind of scheduler with 1 and 8 clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from trivium.backends.load_context import LoadContext
from trivium.backends.response_cache import ResponseCache
from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_registry import build_model
from trivium.errors import TriviumError
from trivium.execution import Execution, ExecutionTimes
from trivium.infer import DataType, InferRequest, InferResponse, Tensor
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import (
    TYPE_FP32,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelQueuePolicy,
    ModelResponseCache,
    ModelSequenceBatching,
)

NUM_REQUESTS = 20_000
TIMES = ExecutionTimes()
DATA = bytes(64)


class NullInstance:
    """Answers at once, one turn of the event loop later."""

    name = "null_0_0"
    is_alive = True
    max_in_flight = 1

    async def wait_alive(self) -> None: ...

    async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
        for execution in batch:
            output = Tensor("OUT", DataType.FP32, (1, 16), DATA)
            execution.respond(InferResponse(model="model", version="1", id=execution.request.id, outputs=[output]))
        await asyncio.sleep(0)
        return TIMES

    async def close(self) -> None: ...


def config(dims: Sequence[int] = (16,), **fields: object) -> ModelConfig:
    return ModelConfig(
        name="model",
        backend="python",
        max_batch_size=64,
        input=[ModelInput(name="IN", data_type=TYPE_FP32, dims=dims)],
        output=[ModelOutput(name="OUT", data_type=TYPE_FP32, dims=[16])],
        **fields,  # type: ignore[arg-type]
    )


def dynamic(**fields: object) -> ModelConfig:
    return config(dynamic_batching=ModelDynamicBatching(**fields))  # type: ignore[arg-type]


def sequences(**fields: object) -> ModelConfig:
    return config(sequence_batching=ModelSequenceBatching(**fields))  # type: ignore[arg-type]


CASES: dict[str, ModelConfig] = {
    "no batching": config(),
    "dynamic": dynamic(),
    "delay 100 us": dynamic(max_queue_delay_microseconds=100),
    "queue size": dynamic(default_queue_policy=ModelQueuePolicy(max_queue_size=1000)),
    "timeouts": dynamic(default_queue_policy=ModelQueuePolicy(default_timeout_microseconds=5_000_000)),
    "priorities": dynamic(priority_levels=3, default_priority_level=2),
    "preserve ordering": dynamic(preserve_ordering=True),
    "variable shapes": config((-1,), dynamic_batching=ModelDynamicBatching()),
    "sequences, direct": sequences(direct=ModelSequenceBatching.StrategyDirect()),
    "sequences, oldest": sequences(oldest=ModelSequenceBatching.StrategyOldest(max_candidate_sequences=16)),
    "cache hits": config(response_cache=ModelResponseCache(enable=True)),
}


def build(settings: ModelConfig) -> TensorModel:
    folder = Path("/nonexistent")
    context = LoadContext(
        complete=lambda config, found: config,
        caller=None,  # type: ignore[arg-type]
        control=None,  # type: ignore[arg-type]
        signature=lambda name, version: None,
        registry=Registry(),
        repository_path=folder,
        model_path=folder,
        response_cache=ResponseCache(10**6),
    )
    return build_model(settings, 1, [NullInstance()], context)


async def cost_us(model: TensorModel, num_clients: int) -> float:
    """Clients that send the next request in the turn after they got their answer."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    tensor = Tensor("IN", DataType.FP32, (1, 16), DATA)
    is_sequence = model.signature.is_sequence
    num_sent = num_answered = 0

    def send(client: int) -> None:
        nonlocal num_sent
        if num_sent < NUM_REQUESTS:
            request = InferRequest(model="model", inputs=[tensor], correlation_id=client + 1, sequence_start=is_sequence and num_sent < num_clients)
            num_sent += 1
            model.infer(request).deliver_to(receiver(client), fail)

    def receiver(client: int) -> Callable[[InferResponse], None]:
        def receive(response: InferResponse) -> None:
            nonlocal num_answered
            num_answered += 1
            if num_answered == NUM_REQUESTS:
                done.set_result(None)
            else:
                loop.call_soon(send, client)

        return receive

    def fail(error: TriviumError) -> None:
        done.set_exception(error)

    begin = time.process_time()
    for client in range(num_clients):
        send(client)
    await done
    return (time.process_time() - begin) / NUM_REQUESTS * 1e6


async def main() -> None:
    print(f"{'':20}{'1 client':>10}{'8 clients':>11}")
    for name, settings in CASES.items():
        costs: list[float] = []
        for num_clients in (1, 8):
            model = build(settings)
            costs.append(await cost_us(model, num_clients))
            await model.close()
        print(f"{name:20}{costs[0]:>10.1f}{costs[1]:>11.1f}")


if __name__ == "__main__":
    uvloop.run(main())

"""`ScheduledModel`: requests to responses, with instances that are functions of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from helpers_tensor_models import FunctionInstance, answer, answers, config, context, double, error_of, request, settle, tensor, values_of

from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_registry import build_model
from trivium.batching.model_metrics import MetricsOptions
from trivium.batching.rate_limiter import RateLimiter
from trivium.batching.statistics import FailureReason
from trivium.errors import DeadlineExceeded, GenerationFailed, InternalError, InvalidRequest, ModelLoadError, NotReady, Overloaded, RequestCancelled
from trivium.execution import Execution, ExecutionTimes
from trivium.infer import InferResponse
from trivium.metrics.instruments import Registry
from trivium.metrics.triton import render
from trivium.protocol.model_config import (
    TYPE_FP32,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelOutput,
    ModelQueuePolicy,
    ModelRateLimiter,
    ModelTensorReshape,
    ModelTransactionPolicy,
)


class Held:
    """A model that computes when it is told to."""

    def __init__(self) -> None:
        self.running: list[Sequence[Execution]] = []
        self._release = asyncio.Event()

    async def __call__(self, batch: Sequence[Execution]) -> None:
        self.running.append(batch)
        await self._release.wait()
        self._release.clear()
        await double(batch)

    def release(self) -> None:
        self._release.set()


def dynamic(**fields: object) -> ModelConfig:
    return config(dynamic_batching=ModelDynamicBatching(**fields))  # type: ignore[arg-type]


def model_of(settings: ModelConfig, *instances: FunctionInstance, **options: object) -> TensorModel:
    return build_model(settings, 1, instances, context(**options))  # type: ignore[arg-type]


async def test_a_request_is_answered_and_counted() -> None:
    model = model_of(config(), FunctionInstance(double))
    [response] = await answers(model.infer(request(tensor("IN", 1, 2, 3, rows=3), id="a")))
    assert values_of(response.outputs[0]) == [2, 4, 6]
    assert (response.id, response.is_final) == ("a", True)
    await settle()
    statistics = model.statistics
    assert (statistics.inference_count, statistics.execution_count, statistics.success.count) == (3, 1, 1)
    assert (statistics.compute_input.ns, statistics.compute_infer.ns, statistics.compute_output.ns) == (1000, 2000, 3000)
    assert list(statistics.batches) == [3] and statistics.batches[3].compute_infer.count == 1
    assert statistics.success.ns >= statistics.queue.ns > 0
    assert statistics.last_inference_ms > 0
    await model.close()


async def test_pushed_answers_come_before_done_callbacks() -> None:
    model = model_of(config(), FunctionInstance(double))
    seen: list[object] = []
    inference = model.infer(request(tensor("IN", 1)))
    inference.add_done_callback(lambda: seen.append("done"))
    inference.deliver_to(lambda response: seen.append(values_of(response.outputs[0])), seen.append)
    await settle()
    assert seen == [[2], "done"]
    late: list[object] = []
    inference.add_done_callback(lambda: late.append("at once"))
    assert late == ["at once"]
    await model.close()


async def test_what_came_before_deliver_to_is_delivered_at_once() -> None:
    async def three(batch: Sequence[Execution]) -> None:
        for number in range(3):
            answer(batch[0], tensor("OUT", number), is_final=number == 2)

    settings = config(model_transaction_policy=ModelTransactionPolicy(decoupled=True))
    model = model_of(settings, FunctionInstance(three))
    inference = model.infer(request(tensor("IN", 1)))
    await settle()
    seen: list[list[float]] = []
    inference.deliver_to(lambda response: seen.append(values_of(response.outputs[0])), lambda error: None)
    assert seen == [[0], [1], [2]]
    await model.close()


async def test_requests_that_arrive_while_the_instance_is_busy_run_together() -> None:
    held = Held()
    instance = FunctionInstance(held)
    model = model_of(dynamic(), instance)
    first = model.infer(request(tensor("IN", 0)))
    await settle()
    others = [model.infer(request(tensor("IN", number))) for number in range(1, 6)]
    await settle()
    assert model.num_pending == 5
    held.release()
    await settle()
    held.release()
    results = [values_of((await answers(inference))[0].outputs[0]) for inference in [first, *others]]
    assert results == [[0], [2], [4], [6], [8], [10]]
    assert instance.sizes == [1, 5]
    await model.close()


async def test_requests_of_one_moment_run_together_although_the_instance_is_free() -> None:
    instance = FunctionInstance(double)
    model = model_of(dynamic(), instance)
    await settle()
    inferences = [model.infer(request(tensor("IN", number))) for number in range(3)]
    await asyncio.gather(*map(answers, inferences))
    assert instance.sizes == [3]
    await model.close()


async def test_without_batching_each_request_runs_alone() -> None:
    instance = FunctionInstance(double)
    model = model_of(config(), instance)
    await asyncio.gather(*(answers(model.infer(request(tensor("IN", number)))) for number in range(3)))
    assert instance.sizes == [1, 1, 1]
    await model.close()


async def test_what_is_left_of_a_burst_is_not_forgotten_when_the_instance_becomes_idle() -> None:
    held = Held()
    instance = FunctionInstance(held)
    model = model_of(dynamic(preferred_batch_size=[2], max_queue_delay_microseconds=30_000), instance)
    await settle()
    first = [model.infer(request(tensor("IN", number))) for number in range(2)]
    await settle()
    last = model.infer(request(tensor("IN", 9)))
    await asyncio.sleep(0.005)
    held.release()
    await asyncio.gather(*map(answers, first))
    await asyncio.sleep(0.06)
    assert instance.sizes == [2, 1]
    held.release()
    assert values_of((await answers(last))[0].outputs[0]) == [18]
    await model.close()


async def test_an_instance_that_becomes_idle_sets_the_timer_for_what_still_waits() -> None:
    held = Held()
    instance = FunctionInstance(held)
    model = model_of(config(max_batch_size=2, dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=20_000)), instance)
    await settle()
    inferences = [model.infer(request(tensor("IN", 0, 0, rows=2)))]
    await settle()
    inferences.append(model.infer(request(tensor("IN", 1))))
    await asyncio.sleep(0.03)
    # The delay of the request before them is over already: nothing sets a timer when these come.
    inferences += [model.infer(request(tensor("IN", number))) for number in (2, 3)]
    for _ in range(2):
        held.release()
        await settle()
    assert instance.sizes == [1, 2]
    await asyncio.sleep(0.05)
    assert instance.sizes == [1, 2, 1]
    held.release()
    await asyncio.gather(*map(answers, inferences))
    await model.close()


async def test_two_requests_in_flight_where_the_instance_takes_them() -> None:
    held = Held()
    instance = FunctionInstance(held)
    instance.max_in_flight = 2
    model = model_of(config(), instance)
    inferences = [model.infer(request(tensor("IN", number))) for number in range(3)]
    await settle()
    assert instance.sizes == [1, 1]
    for _ in range(3):
        held.release()
        await settle()
    await asyncio.gather(*map(answers, inferences))
    await model.close()


async def test_what_a_batch_sent_ahead_waits_for_its_turn_counts_as_queue() -> None:
    async def sleep(batch: Sequence[Execution]) -> None:
        await asyncio.sleep(0.02)
        await double(batch)

    class TwoAtOnce(FunctionInstance):
        """Takes two batches and runs them one after the other; what it calls input includes the wait."""

        max_in_flight = 2
        lock = asyncio.Lock()

        async def execute(self, batch: Sequence[Execution]) -> ExecutionTimes:
            begin = time.monotonic_ns()
            async with self.lock:
                got = time.monotonic_ns()
                await self._run(batch)
                return ExecutionTimes(input_ns=got - begin, infer_ns=time.monotonic_ns() - got)

    model = model_of(config(), TwoAtOnce(sleep))
    await asyncio.gather(*(answers(model.infer(request(tensor("IN", number)))) for number in range(3)))
    await settle()
    statistics = model.statistics
    assert statistics.compute_input.ns < 10_000_000
    assert statistics.queue.ns > 50_000_000
    assert statistics.compute_infer.ns > 55_000_000
    parts = statistics.queue.ns + statistics.compute_input.ns + statistics.compute_infer.ns
    assert abs(statistics.success.ns - parts) < 0.1 * parts
    await model.close()


async def test_a_model_with_a_queue_policy_takes_nothing_ahead() -> None:
    held = Held()
    instance = FunctionInstance(held)
    instance.max_in_flight = 2
    model = model_of(dynamic(default_queue_policy=ModelQueuePolicy(max_queue_size=1)), instance)
    kept = [model.infer(request(tensor("IN", 1)))]
    await settle()
    kept.append(model.infer(request(tensor("IN", 2))))
    with pytest.raises(Overloaded, match=r"^\[request id: r3\] Exceeds maximum queue size$"):
        model.infer(request(tensor("IN", 3), id="r3"))
    assert model.statistics.failures[FailureReason.REJECTED] == 1
    await model.close()
    assert [type(await error_of(inference)) for inference in kept] == [NotReady, NotReady]


async def test_a_timeout_is_answered_while_the_instance_is_busy() -> None:
    held = Held()
    policy = ModelQueuePolicy(default_timeout_microseconds=20_000)
    model = model_of(dynamic(default_queue_policy=policy), FunctionInstance(held))
    running = model.infer(request(tensor("IN", 1)))
    await settle()
    begin = asyncio.get_running_loop().time()
    late = model.infer(request(tensor("IN", 2)))
    error = await error_of(late)
    assert isinstance(error, DeadlineExceeded) and error.message == "Request timeout expired"
    assert 0.019 <= asyncio.get_running_loop().time() - begin < 0.2
    assert model.statistics.failures[FailureReason.REJECTED] == 1
    held.release()
    await answers(running)
    await model.close()


async def test_a_cancelled_request_leaves_the_queue_and_a_running_one_tells_its_instance() -> None:
    held = Held()
    instance = FunctionInstance(held)
    model = model_of(config(), instance)
    running, waiting = model.infer(request(tensor("IN", 1))), model.infer(request(tensor("IN", 2)))
    await settle()
    ended: list[str] = []
    told: list[str] = []
    held.running[0][0].on_cancel(lambda: told.append("cancelled"))
    for name, inference in (("running", running), ("waiting", waiting)):
        inference.add_done_callback(lambda name=name: ended.append(name))
        inference.cancel()
        inference.cancel()
        await inference.aclose()
    assert ended == ["running", "waiting"] and told == ["cancelled"]
    assert held.running[0][0].is_cancelled
    assert model.num_pending == 0
    assert isinstance(await error_of(waiting), RequestCancelled)
    held.release()
    await settle()
    assert instance.sizes == [1]
    assert model.statistics.failures[FailureReason.CANCELED] == 2
    assert (model.statistics.success.count, model.statistics.execution_count) == (0, 1)
    await model.close()


async def test_nothing_is_delivered_after_cancel() -> None:
    model = model_of(config(), FunctionInstance(double))
    inference = model.infer(request(tensor("IN", 1)))
    seen: list[object] = []
    inference.deliver_to(seen.append, seen.append)
    inference.cancel()
    await settle()
    assert seen == []
    await model.close()


async def test_one_bad_request_of_a_batch_fails_alone() -> None:
    async def odd_fail(batch: Sequence[Execution]) -> None:
        for execution in batch:
            if values_of(execution.request.inputs[0])[0] % 2:
                execution.fail(InvalidRequest("odd"))
            else:
                await double([execution])

    model = model_of(dynamic(), FunctionInstance(odd_fail))
    await settle()
    good, bad = model.infer(request(tensor("IN", 2))), model.infer(request(tensor("IN", 1)))
    assert (await error_of(bad)).message == "odd"
    assert len(await answers(good)) == 1
    await settle()
    assert (model.statistics.success.count, model.statistics.fail.count, model.statistics.failures[FailureReason.BACKEND]) == (1, 1, 1)
    await model.close()


async def test_an_instance_that_raises_or_forgets_fails_its_batch_and_goes_on() -> None:
    turns = iter(["raise", "forget", "work"])

    async def moody(batch: Sequence[Execution]) -> None:
        match next(turns):
            case "raise":
                raise ValueError("kaboom")
            case "work":
                await double(batch)
            case _:
                pass

    model = model_of(config(), FunctionInstance(moody))
    raised, forgot, worked = [model.infer(request(tensor("IN", 1), id=name)) for name in ("a", "b", "c")]
    assert (await error_of(raised)).message == "ValueError: kaboom"
    error = await error_of(forgot)
    assert isinstance(error, InternalError) and "[request id: b] the model ended without a response" in error.message
    assert len(await answers(worked)) == 1
    await model.close()


async def test_a_dead_instance_gets_no_work_until_it_is_back() -> None:
    async def compute(batch: Sequence[Execution]) -> None:
        await asyncio.sleep(0)
        await double(batch)

    dead, alive = FunctionInstance(compute), FunctionInstance(compute)
    dead.is_alive = False
    model = model_of(config(), dead, alive)
    for number in range(4):
        await answers(model.infer(request(tensor("IN", number))))
    assert (dead.sizes, alive.sizes) == ([], [1] * 4)
    dead.revive()
    await settle()
    await asyncio.gather(*(answers(model.infer(request(tensor("IN", number)))) for number in range(4)))
    assert dead.sizes
    assert model.is_alive
    await model.close()


async def test_when_the_last_instance_is_given_up_everything_that_waits_fails() -> None:
    class GivenUp(FunctionInstance):
        async def wait_alive(self) -> None:
            await super().wait_alive()
            raise NotReady("it is gone")

    instance = GivenUp(double)
    instance.is_alive = False
    model = model_of(config(), instance)
    waiting = model.infer(request(tensor("IN", 1)))
    await settle()
    instance._revival.set()
    assert (await error_of(waiting)).message == "it is gone"
    with pytest.raises(NotReady, match="no instance of model 'model' is left"):
        model.infer(request(tensor("IN", 1)))
    assert not model.is_alive
    await model.close()


async def test_responses_leave_in_the_order_of_arrival_where_the_model_wants_it() -> None:
    first, second = Held(), Held()
    model = model_of(dynamic(preserve_ordering=True, preferred_batch_size=[1]), FunctionInstance(first), FunctionInstance(second))
    await settle()
    ended: list[int] = []
    inferences = [model.infer(request(tensor("IN", number))) for number in range(3)]
    for number, inference in enumerate(inferences):
        inference.deliver_to(lambda response, number=number: ended.append(number), lambda error, number=number: ended.append(-number))
    await settle()
    second.release()
    await settle()
    assert ended == []
    first.release()
    await settle()
    assert ended == [0, 1]
    await model.close()
    assert ended == [0, 1, -2]


async def test_a_cancelled_request_holds_nobody_up() -> None:
    first, second = Held(), Held()
    model = model_of(dynamic(preserve_ordering=True, preferred_batch_size=[1]), FunctionInstance(first), FunctionInstance(second))
    await settle()
    inferences = [model.infer(request(tensor("IN", number))) for number in range(2)]
    await settle()
    second.release()
    await settle()
    inferences[0].cancel()
    assert len(await answers(inferences[1])) == 1
    await model.close()


async def test_a_decoupled_model_answers_as_often_as_it_likes_also_after_its_instance_is_free() -> None:
    kept: list[Execution] = []

    async def start(batch: Sequence[Execution]) -> None:
        kept.extend(batch)

    settings = config(model_transaction_policy=ModelTransactionPolicy(decoupled=True))
    model = model_of(settings, FunctionInstance(start))
    inference = model.infer(request(tensor("IN", 1)))
    empty = model.infer(request(tensor("IN", 1)))
    failing = model.infer(request(tensor("IN", 1)))
    await settle()
    assert len(kept) == 3
    for number in range(2):
        answer(kept[0], tensor("OUT", number), is_final=False)
    answer(kept[0], is_null=True)
    answer(kept[0], tensor("OUT", 99))
    answer(kept[1], is_null=True)
    answer(kept[2], tensor("OUT", 1), is_final=False)
    kept[2].fail(GenerationFailed("kaboom"))
    found = await answers(inference)
    assert [response.is_null for response in found] == [False, False, True]
    assert [response.is_null for response in await answers(empty)] == [True]
    assert (await error_of(failing)).message == "kaboom"
    await settle()
    statistics = model.statistics
    assert (statistics.success.count, statistics.fail.count, statistics.inference_count, statistics.execution_count) == (2, 1, 2, 3)
    assert statistics.responses[0].success.count == 2 and statistics.responses[0].empty_response.count == 1
    assert statistics.responses[2].empty_response.count == 1
    await model.close()


async def test_a_decoupled_request_that_fails_after_a_response_is_a_failure_only() -> None:
    async def half(batch: Sequence[Execution]) -> None:
        answer(batch[0], tensor("OUT", 1), is_final=False)
        batch[0].fail(GenerationFailed("kaboom"))

    model = model_of(config(model_transaction_policy=ModelTransactionPolicy(decoupled=True)), FunctionInstance(half))
    await error_of(model.infer(request(tensor("IN", 1))))
    await settle()
    assert (model.statistics.success.count, model.statistics.fail.count) == (0, 1)
    await model.close()


async def test_the_time_of_a_decoupled_request_is_the_time_until_its_last_response() -> None:
    kept: list[Execution] = []

    async def start(batch: Sequence[Execution]) -> None:
        kept.extend(batch)

    model = model_of(config(model_transaction_policy=ModelTransactionPolicy(decoupled=True)), FunctionInstance(start))
    inference = model.infer(request(tensor("IN", 1)))
    await settle()
    await asyncio.sleep(0.01)
    answer(kept[0], tensor("OUT", 1))
    await answers(inference)
    assert model.statistics.compute_infer.ns >= 9_000_000
    await model.close()


async def test_only_the_outputs_asked_for_come_back() -> None:
    async def both(batch: Sequence[Execution]) -> None:
        for execution in batch:
            answer(execution, tensor("OUT", 1), tensor("EXTRA", 2))

    outputs = [ModelOutput(name=name, data_type=TYPE_FP32, dims=[1]) for name in ("OUT", "EXTRA")]
    model = model_of(config(output=outputs), FunctionInstance(both))

    async def names(*asked: str) -> list[str]:
        [response] = await answers(model.infer(request(tensor("IN", 1), outputs=asked)))
        return [found.name for found in response.outputs]

    assert await names() == await names("EXTRA", "OUT") == ["OUT", "EXTRA"]
    assert await names("EXTRA") == ["EXTRA"]
    await model.close()


async def test_reshape_is_between_client_and_model() -> None:
    seen: list[tuple[int, ...]] = []

    async def look(batch: Sequence[Execution]) -> None:
        for execution in batch:
            seen.append(execution.request.inputs[0].shape)
            given = execution.request.inputs[0]
            good = values_of(given)[0] >= 0
            answer(execution, tensor("OUT", *values_of(given), rows=given.shape[0]) if good else tensor("OUT", 1, 2, 3, rows=1))

    def shaped(kind: type[ModelInput] | type[ModelOutput], name: str, dims: list[int], shape: list[int]) -> ModelInput | ModelOutput:
        return kind(name=name, data_type=TYPE_FP32, dims=dims, reshape=ModelTensorReshape(shape=shape))

    settings = config(input=[shaped(ModelInput, "IN", [2, -1, 6], [4, -1, 3])], output=[shaped(ModelOutput, "OUT", [-1, 2], [-1])])
    settings.output[0].dims[:] = [-1, 1]
    model = model_of(settings, FunctionInstance(look))
    given = tensor("IN", *range(12), rows=1)
    given.shape = (1, 2, 1, 6)
    [response] = await answers(model.infer(request(given)))
    assert seen == [(1, 4, 1, 3)]
    assert response.outputs[0].shape == (1, 12, 1)
    assert given.shape == (1, 2, 1, 6)
    await model.close()


async def test_an_output_that_reshape_can_not_undo_is_an_error() -> None:
    async def wrong(batch: Sequence[Execution]) -> None:
        answer(batch[0], tensor("OUT", 1, 2, 3, rows=1))

    settings = config(output=[ModelOutput(name="OUT", data_type=TYPE_FP32, dims=[2], reshape=ModelTensorReshape(shape=[2, 1]))])
    model = model_of(settings, FunctionInstance(wrong))
    error = await error_of(model.infer(request(tensor("IN", 1))))
    assert isinstance(error, GenerationFailed) and "unexpected shape for output 'OUT'. Expected [-1, 2, 1], got [1, 3]" in error.message
    await model.close()


async def test_models_share_the_resources_of_the_rate_limiter() -> None:
    limiter = RateLimiter()
    group = ModelInstanceGroup(count=1, rate_limiter=ModelRateLimiter(resources=[ModelRateLimiter.Resource(name="R", count=1)]))
    held = [Held(), Held()]
    instances = [FunctionInstance(run) for run in held]
    models = [model_of(config(name, instance_group=[group]), instance, rate_limiter=limiter) for name, instance in zip("ab", instances, strict=True)]
    inferences = [model.infer(request(tensor("IN", 1), model=name)) for name, model in zip("ab", models, strict=True)]
    await settle()
    assert [instance.sizes for instance in instances] == [[1], []]
    held[0].release()
    await settle()
    assert [instance.sizes for instance in instances] == [[1], [1]]
    held[1].release()
    await asyncio.gather(*map(answers, inferences))
    waiting = models[1].infer(request(tensor("IN", 1), model="b"))
    await settle()
    await models[1].close()
    assert isinstance(await error_of(waiting), NotReady)
    again = models[0].infer(request(tensor("IN", 1), model="a"))
    held[0].release()
    await answers(again)
    await models[0].close()


async def test_close_ends_everything_and_refuses_what_comes() -> None:
    held = Held()
    instance = FunctionInstance(held)
    model = model_of(config(), instance)
    inferences = [model.infer(request(tensor("IN", 1))) for _ in range(2)]
    await settle()
    await model.close()
    await model.close()
    assert instance.is_closed and not model.is_alive
    assert [type(await error_of(inference)) for inference in inferences] == [NotReady, NotReady]
    with pytest.raises(NotReady, match="Request for unknown model: 'model' has no available versions"):
        model.infer(request(tensor("IN", 1)))


async def test_fail_from_outside_ends_a_request_wherever_it_is() -> None:
    held = Held()
    model = model_of(config(), FunctionInstance(held))
    running, waiting = model.infer(request(tensor("IN", 1))), model.infer(request(tensor("IN", 1)))
    await settle()
    for inference in (running, waiting):
        inference.fail(DeadlineExceeded("too late"))
        assert (await error_of(inference)).message == "too late"
    assert model.num_pending == 0
    await model.close()


async def test_a_consumer_that_raises_does_not_break_the_instance() -> None:
    def refuse(response: InferResponse) -> None:
        raise ValueError("no")

    model = model_of(config(), FunctionInstance(double))
    model.infer(request(tensor("IN", 1))).deliver_to(refuse, lambda error: None)
    assert len(await answers(model.infer(request(tensor("IN", 1))))) == 1
    await model.close()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("TRITON_BATCH_STRATEGY_PATH", "lib.so", "is not supported"), ("regrouping", "maybe", "must be 'on' or 'off', not 'maybe'")],
)
def test_parameters_that_can_not_be_honoured_are_refused_by_name(name: str, value: str, reason: str) -> None:
    settings = dynamic()
    settings.parameters[name].string_value = value
    with pytest.raises(ModelLoadError, match=f"{name}.*{reason}"):
        model_of(settings, FunctionInstance(double))


async def test_metrics_have_tritons_names_labels_and_values() -> None:
    registry = Registry()
    settings = config(metric_tags={"team": 'a"b'}, instance_group=[ModelInstanceGroup(count=1)])
    options = MetricsOptions(summary_latencies=True, histogram_latencies=True, summary_quantiles=(0.5,))
    model = model_of(settings, FunctionInstance(double), registry=registry, metrics=options)
    await answers(model.infer(request(tensor("IN", 1, 2, rows=2))))
    with pytest.raises(InvalidRequest):
        model.infer(request(tensor("WRONG", 1)))
    await settle()
    page = render(point for source in registry.triton_sources for point in source()).decode()
    labels = 'model="model",version="1",_team="a\\"b"'
    for line in (
        "# TYPE nv_inference_request_success counter",
        f"nv_inference_request_success{{{labels}}} 1",
        'nv_inference_request_failure{model="model",reason="OTHER",version="1",_team="a\\"b"} 1',
        'nv_inference_request_failure{model="model",reason="CANCELED",version="1",_team="a\\"b"} 0',
        f"nv_inference_count{{{labels}}} 2",
        f"nv_inference_exec_count{{{labels}}} 1",
        f"nv_inference_compute_infer_duration_us{{{labels}}} 2",
        f"nv_inference_pending_request_count{{{labels}}} 0",
        f'nv_inference_compute_infer_summary_us{{{labels},quantile="0.5"}} 2',
        f"nv_inference_compute_infer_summary_us_count{{{labels}}} 1",
        f'nv_inference_first_response_histogram_ms_bucket{{{labels},le="+Inf"}} 1',
        f"nv_inference_first_response_histogram_ms_count{{{labels}}} 1",
    ):
        assert line in page.splitlines()
    await model.close()
    assert registry.triton_sources == []


async def test_a_model_may_have_its_own_buckets_and_latencies_can_be_left_out() -> None:
    registry = Registry()
    control = ModelMetrics.MetricControl(
        metric_identifier=ModelMetrics.MetricControl.MetricIdentifier(family="nv_inference_first_response_histogram_ms"),
        histogram_options=ModelMetrics.MetricControl.HistogramOptions(buckets=[7, 3]),
    )
    settings = config(model_metrics=ModelMetrics(metric_control=[control]))
    model = model_of(settings, FunctionInstance(double), registry=registry, metrics=MetricsOptions(counter_latencies=False, histogram_latencies=True))
    await answers(model.infer(request(tensor("IN", 1))))
    await settle()
    page = render(point for source in registry.triton_sources for point in source()).decode()
    assert 'le="3"' in page and 'le="7"' in page and 'le="100"' not in page
    assert "duration_us" not in page
    assert 'nv_inference_request_success{model="model",version="1"} 1' in page
    await model.close()

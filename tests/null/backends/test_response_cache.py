"""The response cache: whose answers it gives, and what it keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from helpers_tensor_models import FunctionInstance, answer, answers, config, context, error_of, floats, request, settle, tensor, values_of

from trivium.backends.response_cache import ENTRY_OVERHEAD, ResponseCache, cache_key
from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_registry import build_model
from trivium.errors import InvalidRequest
from trivium.execution import Execution
from trivium.infer import DataType, InferRequest, InferResponse, Tensor
from trivium.protocol.model_config import TYPE_FP32, ModelDynamicBatching, ModelInput, ModelOutput, ModelResponseCache

OUTPUTS = [ModelOutput(name=name, data_type=TYPE_FP32, dims=[-1]) for name in ("A", "B")]


async def copy_both(batch: Sequence[Execution]) -> None:
    for execution in batch:
        [given] = execution.request.inputs
        if values_of(given)[:1] == [-1]:
            execution.fail(InvalidRequest("negative"))
        else:
            answer(execution, *(Tensor(name, given.datatype, given.shape, given.data) for name in ("A", "B")))


def cached_model(cache: ResponseCache) -> tuple[TensorModel, FunctionInstance]:
    instance = FunctionInstance(copy_both)
    settings = config(
        input=[ModelInput(name="IN", data_type=TYPE_FP32, dims=[-1, -1])],
        output=OUTPUTS,
        max_batch_size=0,
        response_cache=ModelResponseCache(enable=True),
    )
    return build_model(settings, 1, [instance], context(response_cache=cache)), instance


def given(*values: float, columns: int | None = None, **fields: object) -> InferRequest:
    columns = columns or len(values)
    return request(Tensor("IN", DataType.FP32, (len(values) // columns, columns), floats(values)), **fields)  # type: ignore[arg-type]


async def test_the_recorded_example() -> None:
    model, instance = cached_model(ResponseCache(10**6))
    for number, value in enumerate((1, 1, 1, 2)):
        [response] = await answers(model.infer(given(value, id=str(number))))
        assert values_of(response.outputs[0]) == [value]
        assert response.id == str(number)
        await settle()
    statistics = model.statistics
    assert (statistics.inference_count, statistics.execution_count, statistics.success.count, statistics.queue.count) == (2, 2, 4, 4)
    assert (statistics.cache_hit.count, statistics.cache_miss.count, statistics.compute_infer.count) == (2, 2, 2)
    assert list(statistics.batches) == [1]
    assert len(instance.batches) == 2
    await model.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(given(1, 2, 3, 4), given(1, 2, 3, 4, columns=2), id="shape"),
        pytest.param(given(1), given(1, parameters={"p": 1}), id="a parameter"),
        pytest.param(given(1, parameters={"p": 1}), given(1, parameters={"p": True}), id="a parameter's type"),
        pytest.param(given(1, outputs=["A"]), given(1, outputs=["B"]), id="outputs"),
        pytest.param(given(1, outputs=["A"]), given(1), id="all outputs"),
    ],
)
async def test_what_tritons_cache_confuses_is_kept_apart(first: InferRequest, second: InferRequest) -> None:
    model, instance = cached_model(ResponseCache(10**6))
    for asked in (first, second, first, second):
        [response] = await answers(model.infer(asked))
        assert [output.name for output in response.outputs] == ([output.name for output in asked.outputs] or ["A", "B"])
        assert response.outputs[0].shape == asked.inputs[0].shape
    assert len(instance.batches) == 2
    await model.close()


def test_keys_differ_in_everything_an_answer_depends_on() -> None:
    def bytes_of(datatype: DataType) -> InferRequest:
        return InferRequest(model="m", inputs=[Tensor("IN", datatype, (1,), bytes(4))])

    keys = [
        cache_key(1, bytes_of(DataType.FP32)),
        cache_key(2, bytes_of(DataType.FP32)),
        cache_key(1, bytes_of(DataType.INT32)),
        cache_key(1, InferRequest(model="m", inputs=[Tensor("OTHER", DataType.FP32, (1,), bytes(4))])),
    ]
    assert len({*keys}) == len(keys)


def test_the_order_of_inputs_outputs_and_parameters_does_not_matter_nor_do_id_and_priority() -> None:
    one = request(tensor("A", 1), tensor("B", 2), outputs=["X", "Y"], parameters={"p": 1, "q": 2}, id="1", priority=1)
    other = request(tensor("B", 2), tensor("A", 1), outputs=["Y", "X"], parameters={"q": 2, "p": 1}, id="2", timeout_us=5)
    assert cache_key(1, one) == cache_key(1, other)


async def test_errors_are_not_kept() -> None:
    model, instance = cached_model(ResponseCache(10**6))
    for _ in range(2):
        assert (await error_of(model.infer(given(-1)))).message == "negative"
    assert len(instance.batches) == 2
    await model.close()


async def test_a_hit_is_delivered_in_every_way() -> None:
    model, _ = cached_model(ResponseCache(10**6))
    await answers(model.infer(given(1)))
    seen: list[object] = []
    hit = model.infer(given(1))
    hit.add_done_callback(lambda: seen.append("done"))
    hit.deliver_to(lambda response: seen.append(response.is_final), seen.append)
    hit.cancel()
    assert seen == ["done", True]
    await model.close()


async def test_a_hit_keeps_the_order_of_requests_where_the_model_does() -> None:
    release = asyncio.Event()

    async def slow(batch: Sequence[Execution]) -> None:
        if values_of(batch[0].request.inputs[0]) == [2]:
            await release.wait()
        await copy_both(batch)

    settings = config(output=OUTPUTS, response_cache=ModelResponseCache(enable=True), dynamic_batching=ModelDynamicBatching(preserve_ordering=True))
    model = build_model(settings, 1, [FunctionInstance(slow)], context(response_cache=ResponseCache(10**6)))
    await answers(model.infer(request(tensor("IN", 1))))
    ended: list[str] = []
    for name, value in (("miss", 2.0), ("hit", 1.0)):
        model.infer(request(tensor("IN", value))).deliver_to(lambda response, name=name: ended.append(name), lambda error: None)
    await settle()
    assert ended == []
    release.set()
    await settle()
    assert ended == ["miss", "hit"]
    await model.close()


async def test_what_is_loaded_anew_shares_no_answers_and_a_closed_one_leaves_none_behind() -> None:
    cache = ResponseCache(10**6)
    (one, first), (two, second) = cached_model(cache), cached_model(cache)
    for model in (one, two):
        await answers(model.infer(given(1)))
    assert len(first.batches) == len(second.batches) == 1
    await one.close()
    assert len(cache) == 1
    await two.close()
    assert (len(cache), cache.num_bytes) == (0, 0)


async def test_without_a_cache_the_setting_has_no_effect() -> None:
    instance = FunctionInstance(copy_both)
    settings = config(output=OUTPUTS, response_cache=ModelResponseCache(enable=True))
    model = build_model(settings, 1, [instance], context())
    for _ in range(2):
        await answers(model.infer(request(tensor("IN", 1))))
    assert len(instance.batches) == 2
    await model.close()


def put(cache: ResponseCache, number: int, num_bytes: int = 0) -> None:
    cache.put(("m", 1, number), InferResponse(model="m", version="1", outputs=[Tensor("A", DataType.UINT8, (num_bytes,), bytes(num_bytes))]))


def test_the_least_recently_used_go_first() -> None:
    cache = ResponseCache(3 * (ENTRY_OVERHEAD + 100))
    for number in range(3):
        put(cache, number)
    assert cache.get(("m", 1, 0), "") is not None
    put(cache, 3)
    assert [number for number in range(4) if cache.get(("m", 1, number), "") is not None] == [0, 2, 3]


def test_bytes_of_answers_and_keys_count_and_what_is_too_large_is_not_kept() -> None:
    cache = ResponseCache(10 * ENTRY_OVERHEAD)
    put(cache, 1)
    put(cache, 2, 20 * ENTRY_OVERHEAD)
    assert len(cache) == 1
    put(cache, 3, 9 * ENTRY_OVERHEAD - 100)
    assert len(cache) == 1 and cache.get(("m", 1, 3), "") is not None
    assert ENTRY_OVERHEAD * 9 < cache.num_bytes <= cache.byte_limit
    put(cache, 3)
    assert cache.num_bytes < 2 * ENTRY_OVERHEAD
    cache.put((bytes(20 * ENTRY_OVERHEAD),), InferResponse(model="m", version="1", outputs=[]))
    assert len(cache) == 1


def test_an_answer_that_is_kept_again_counts_once() -> None:
    cache = ResponseCache(10**6)
    put(cache, 1)
    before = cache.num_bytes
    put(cache, 1)
    assert (len(cache), cache.num_bytes) == (1, before)


def test_an_answer_does_not_change_when_a_client_changes_its_copy() -> None:
    cache = ResponseCache(10**6)
    put(cache, 1)
    found = cache.get(("m", 1, 1), "a")
    assert found is not None
    found.outputs.clear()
    found.parameters["x"] = 1
    again = cache.get(("m", 1, 1), "b")
    assert again is not None and len(again.outputs) == 1 and again.parameters == {} and (found.id, again.id) == ("a", "b")

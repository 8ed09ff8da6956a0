"""Sequences as models see them: control inputs, rows without a request, state that is kept for them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers_tensor_models import FunctionInstance, answer, answers, config, context, error_of, floats, request, settle, tensor, values_of

from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_registry import build_model
from trivium.errors import GenerationFailed, InvalidRequest, ModelLoadError
from trivium.execution import Execution
from trivium.infer import DataType, InferRequest
from trivium.protocol.model_config import TYPE_FP32, TYPE_INT32, TYPE_STRING, TYPE_UINT64, ModelConfig, ModelOutput, ModelSequenceBatching

Control = ModelSequenceBatching.Control
FLAGS = {"START": Control.CONTROL_SEQUENCE_START, "END": Control.CONTROL_SEQUENCE_END, "READY": Control.CONTROL_SEQUENCE_READY}


def sequences(corrid_type: int = TYPE_UINT64, *, max_batch_size: int = 4, **fields: object) -> ModelConfig:
    controls = [ModelSequenceBatching.ControlInput(name=name, control=[Control(kind=kind, fp32_false_true=[0, 1])]) for name, kind in FLAGS.items()]
    corrid = Control(kind=Control.CONTROL_SEQUENCE_CORRID, data_type=corrid_type)
    controls.append(ModelSequenceBatching.ControlInput(name="CORRID", control=[corrid]))
    batching = ModelSequenceBatching(control_input=controls, **fields)  # type: ignore[arg-type]
    return config(sequence_batching=batching, max_batch_size=max_batch_size)


def flags_of(seen: InferRequest) -> tuple[float, ...]:
    """START, END, READY."""
    given = {found.name: found for found in seen.inputs}
    return tuple(values_of(given[name])[0] for name in FLAGS)


async def echo(batch: Sequence[Execution]) -> None:
    for execution in batch:
        answer(execution, tensor("OUT", *values_of(execution.request.inputs[0])))


def model_of(settings: ModelConfig, instance: FunctionInstance, folder: Path = Path("/nowhere")) -> TensorModel:
    return build_model(settings, 1, [instance], context(folder))


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
async def test_controls_say_where_in_its_sequence_a_request_is(strategy: str) -> None:
    fields = {strategy: getattr(ModelSequenceBatching, f"Strategy{strategy.title()}")()}
    instance = FunctionInstance(echo)
    model = model_of(sequences(**fields), instance)
    for value, flags in ((1.0, {"sequence_start": True}), (2.0, {}), (3.0, {"sequence_end": True})):
        [response] = await answers(model.infer(request(tensor("IN", value), correlation_id=7, **flags)))
        assert values_of(response.outputs[0]) == [value]
    [response] = await answers(model.infer(request(tensor("IN", 1), correlation_id="abc", sequence_start=True, sequence_end=True)))
    seen = [batch[0] for batch in instance.batches]
    assert [flags_of(found) for found in seen] == [(1, 0, 1), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
    corrids = [next(found for found in one.inputs if found.name == "CORRID") for one in seen]
    assert [struct.unpack("<Q", found.data)[0] for found in corrids] == [7, 7, 7, 0]
    assert {found.shape for found in corrids} == {(1, 1)}
    await model.close()


async def test_a_model_may_want_the_id_as_text() -> None:
    instance = FunctionInstance(echo)
    model = model_of(sequences(TYPE_STRING, max_batch_size=0), instance)
    await answers(model.infer(request(tensor("IN", 1, rows=None), correlation_id="abc", sequence_start=True)))
    corrid = next(found for found in instance.batches[0][0].inputs if found.name == "CORRID")
    assert (corrid.datatype, corrid.shape, corrid.data) == (DataType.BYTES, (1,), b"\x03\x00\x00\x00abc")
    await model.close()


async def test_an_id_that_its_control_can_not_hold_is_refused() -> None:
    model = model_of(sequences(TYPE_INT32), FunctionInstance(echo))
    with pytest.raises(InvalidRequest, match="the correlation ID 4294967296 does not fit INT32, the type of 'CORRID'"):
        model.infer(request(tensor("IN", 1), correlation_id=2**32, sequence_start=True))
    await model.close()


async def test_direct_shows_the_model_rows_without_a_request_and_counts_none_of_them() -> None:
    instance = FunctionInstance(echo)
    model = model_of(sequences(), instance)
    for correlation_id in (1, 2):
        await answers(model.infer(request(tensor("IN", 5), correlation_id=correlation_id, sequence_start=True)))
    await answers(model.infer(request(tensor("IN", 6), correlation_id=2)))
    await settle()
    rows = instance.batches[-1]
    assert [flags_of(row) for row in rows] == [(0, 0, 0), (0, 0, 1)]
    assert [values_of(row.inputs[0]) for row in rows] == [[0], [6]]
    assert (model.statistics.success.count, model.statistics.fail.count, model.statistics.inference_count) == (3, 0, 3)
    await model.close()


def state(**initial: object) -> ModelSequenceBatching.State:
    given = [ModelSequenceBatching.InitialState(name="first", data_type=TYPE_FP32, dims=[1], **initial)] if initial else []  # type: ignore[arg-type]
    return ModelSequenceBatching.State(input_name="SUM_IN", output_name="SUM_OUT", data_type=TYPE_FP32, dims=[1], initial_state=given)


async def add_to_sum(batch: Sequence[Execution]) -> None:
    for execution in batch:
        given = {found.name: values_of(found)[0] for found in execution.request.inputs}
        total = given["IN"] + given["SUM_IN"]
        answer(execution, tensor("OUT", total), tensor("SUM_OUT", total))


async def totals(model: TensorModel, correlation_id: int, *values: float, start: bool = True) -> list[float]:
    found: list[float] = []
    for number, value in enumerate(values):
        asked = request(tensor("IN", value), correlation_id=correlation_id, sequence_start=start and number == 0, outputs=["OUT"])
        [response] = await answers(model.infer(asked))
        assert [output.name for output in response.outputs] == ["OUT"]
        found += values_of(response.outputs[0])
    return found


@pytest.mark.parametrize(("initial", "base"), [({}, 0), ({"zero_data": True}, 0), ({"data_file": "sum"}, 100)])
async def test_state_goes_from_one_request_of_a_sequence_to_the_next(tmp_path: Path, initial: dict[str, object], base: float) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "sum").write_bytes(floats([100]))
    instance = FunctionInstance(add_to_sum)
    model = model_of(sequences(state=[state(**initial)]), instance, tmp_path)
    assert await totals(model, 1, 1, 2, 3) == [base + 1, base + 3, base + 6]
    assert await totals(model, 2, 10) == [base + 10]
    assert await totals(model, 1, 4, start=False) == [base + 10]
    assert await totals(model, 1, 5) == [base + 5]
    assert {output.name for output in instance.batches[0][0].outputs} == {"OUT", "SUM_OUT"}
    await model.close()


@pytest.mark.parametrize(
    ("file", "data", "reason"),
    [("absent", None, "can't be read"), ("short", b"123", "has 3 bytes; \\[1\\] elements of FP32 need 4"), ("../outside", b"1234", "lies outside")],
)
def test_an_initial_state_that_can_not_be_had_is_a_load_error(tmp_path: Path, file: str, data: bytes | None, reason: str) -> None:
    (tmp_path / "initial_state").mkdir()
    if data is not None:
        (tmp_path / "initial_state" / file).write_bytes(data)
    with pytest.raises(ModelLoadError, match=reason):
        model_of(sequences(state=[state(data_file=file)]), FunctionInstance(add_to_sum), tmp_path)


async def test_when_a_delay_is_over_every_instance_that_has_work_begins() -> None:
    direct = ModelSequenceBatching.StrategyDirect(max_queue_delay_microseconds=10_000, minimum_slot_utilization=1.0)
    instances = [FunctionInstance(echo, str(number)) for number in range(2)]
    model = build_model(sequences(direct=direct), 1, instances, context())
    await settle()
    inferences = [model.infer(request(tensor("IN", number), correlation_id=number, sequence_start=True)) for number in (1, 2)]
    await settle()
    assert [instance.sizes for instance in instances] == [[], []]
    await asyncio.gather(*map(answers, inferences))
    assert [instance.sizes for instance in instances] == [[1], [1]]
    await model.close()


async def test_an_iterative_model_runs_a_request_until_it_is_done() -> None:
    runs = 0

    async def three_times(batch: Sequence[Execution]) -> None:
        nonlocal runs
        for execution in batch:
            runs += 1
            if runs < 3:
                execution.reschedule()
            else:
                answer(execution, tensor("OUT", runs))

    instance = FunctionInstance(three_times)
    model = model_of(sequences(oldest=ModelSequenceBatching.StrategyOldest(), iterative_sequence=True), instance)
    [response] = await answers(model.infer(request(tensor("IN", 1))))
    assert values_of(response.outputs[0]) == [3]
    await settle()
    assert [flags_of(batch[0])[0] for batch in instance.batches] == [1, 0, 0]
    assert (model.statistics.success.count, model.statistics.execution_count) == (1, 3)
    await model.close()


async def test_a_rescheduled_request_can_be_cancelled() -> None:
    async def forever(batch: Sequence[Execution]) -> None:
        batch[0].reschedule()
        inference.cancel()

    model = model_of(sequences(oldest=ModelSequenceBatching.StrategyOldest(), iterative_sequence=True), FunctionInstance(forever))
    inference = model.infer(request(tensor("IN", 1)))
    await settle()
    assert model.num_pending == 0
    await model.close()


async def test_a_model_without_sequences_can_not_reschedule() -> None:
    async def again(batch: Sequence[Execution]) -> None:
        batch[0].reschedule()

    model = model_of(config(output=[ModelOutput(name="OUT", data_type=TYPE_FP32, dims=[1])]), FunctionInstance(again))
    assert isinstance(await error_of(model.infer(request(tensor("IN", 1)))), GenerationFailed)
    await model.close()

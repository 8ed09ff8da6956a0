"""Ensembles: what runs when, what is answered, how it fails. The steps' models are functions of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from helpers_tensor_models import Caller, FunctionInstance, answer, answers, config, context, double, error_of, request, settle, tensor, values_of

from trivium.backends.ensemble_graph import component_models, ensemble_graph
from trivium.backends.tensor_base import TensorModel
from trivium.backends.tensor_registry import build_model, create_tensor_model
from trivium.errors import InvalidRequest, ModelLoadError, NotReady, Overloaded, RequestCancelled
from trivium.execution import Execution
from trivium.infer import InferRequest, InferResponse
from trivium.protocol.model_config import (
    TYPE_FP32,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
    ModelQueuePolicy,
    ModelTransactionPolicy,
)

StepText = tuple[str, Mapping[str, str], Mapping[str, str]]
"""Model, input_map, output_map."""
DECOUPLED = ModelTransactionPolicy(decoupled=True)


def ensemble(*steps: StepText, inputs: Sequence[str] = ("X",), outputs: Sequence[str] = ("Y",), **scheduling: int) -> ModelConfig:
    return ModelConfig(
        name="ens",
        platform="ensemble",
        max_batch_size=8,
        input=[ModelInput(name=name.rstrip("?"), data_type=TYPE_FP32, dims=[1], optional=name.endswith("?")) for name in inputs],
        output=[ModelOutput(name=name, data_type=TYPE_FP32, dims=[1]) for name in outputs],
        ensemble_scheduling=ModelEnsembling(
            step=[
                ModelEnsembling.Step(model_name=model, model_version=-1, input_map=input_map, output_map=output_map)
                for model, input_map, output_map in steps
            ],
            **scheduling,
        ),
    )


async def add(batch: Sequence[Execution]) -> None:
    """OUT is the sum of all inputs."""
    for execution in batch:
        answer(execution, tensor("OUT", sum(values_of(given)[0] for given in execution.request.inputs)))


async def refuse(batch: Sequence[Execution]) -> None:
    for execution in batch:
        execution.fail(InvalidRequest("negative input"))


async def count(batch: Sequence[Execution]) -> None:
    """0, 1, … up to the value of IN, then an empty end."""
    for execution in batch:
        for number in range(int(values_of(execution.request.inputs[0])[0])):
            answer(execution, tensor("OUT", number), is_final=False)
            await asyncio.sleep(0)
        answer(execution, is_null=True)


async def nothing(batch: Sequence[Execution]) -> None:
    for execution in batch:
        answer(execution)


TWO_INPUTS = [ModelInput(name=name, data_type=TYPE_FP32, dims=[1], optional=name == "B") for name in ("A", "B")]


class Server:
    """Models that steps may call, each with its instance."""

    def __init__(self) -> None:
        self.caller = Caller()
        self.instances: dict[str, FunctionInstance] = {}
        self.add_model("double", double)
        self.add_model("add", add, input=TWO_INPUTS)
        self.add_model("refuse", refuse)
        self.add_model("count", count, model_transaction_policy=DECOUPLED)
        self.add_model("nothing", nothing)

    def add_model(self, name: str, run: object, **fields: object) -> None:
        self.instances[name] = FunctionInstance(run, name)  # type: ignore[arg-type]
        self.caller.models[name] = build_model(config(name, **fields), 1, [self.instances[name]], context())

    async def ensemble(self, settings: ModelConfig) -> TensorModel:
        from pathlib import Path

        loaded = await create_tensor_model(settings, 1, Path("/nowhere"), context(caller=self.caller))
        return loaded.model

    async def close(self) -> None:
        for model in self.caller.models.values():
            await model.close()


def outputs_of(response: InferResponse) -> dict[str, list[float]]:
    return {output.name: values_of(output) for output in response.outputs}


def ask(*values: float, **fields: object) -> InferRequest:
    return request(tensor("X", *values, rows=len(values)), model="ens", **fields)  # type: ignore[arg-type]


DIAMOND = ensemble(
    ("add", {"A": "left", "B": "right"}, {"OUT": "Y"}),
    ("double", {"IN": "X"}, {"OUT": "left"}),
    ("double", {"IN": "left"}, {"OUT": "right"}),
)


async def test_steps_run_once_what_they_need_is_there_whatever_their_order() -> None:
    server = Server()
    model = await server.ensemble(DIAMOND)
    [response] = await answers(model.infer(ask(5, id="e")))
    assert outputs_of(response) == {"Y": [30]}
    assert (response.model, response.version, response.id, response.is_final) == ("ens", "1", "e", True)
    statistics = model.statistics
    assert (statistics.success.count, statistics.execution_count, statistics.inference_count) == (1, 1, 1)
    assert {seen.id for batch in server.instances["double"].batches for seen in batch} == {"e"}
    await server.close()


async def test_steps_of_several_requests_are_batched_in_their_models_own_scheduler() -> None:
    server = Server()
    server.add_model("double", double, dynamic_batching=ModelDynamicBatching())
    model = await server.ensemble(ensemble(("double", {"IN": "X"}, {"OUT": "Y"})))
    await settle()
    await asyncio.gather(*(answers(model.infer(ask(number))) for number in range(4)))
    assert server.instances["double"].sizes == [4]
    await server.close()


async def test_only_the_steps_for_the_outputs_asked_for_run() -> None:
    server = Server()
    settings = ensemble(("double", {"IN": "X"}, {"OUT": "Y"}), ("refuse", {"IN": "X"}, {"OUT": "Z"}), outputs=("Y", "Z"))
    model = await server.ensemble(settings)
    [response] = await answers(model.infer(ask(5, outputs=["Y"])))
    assert outputs_of(response) == {"Y": [10]}
    assert server.instances["refuse"].batches == []
    await server.close()


async def test_a_steps_error_is_the_ensembles_with_its_kind_and_ends_the_other_steps() -> None:
    server = Server()
    never = asyncio.Event()

    async def wait(batch: Sequence[Execution]) -> None:
        await never.wait()

    server.add_model("wait", wait)
    settings = ensemble(("wait", {"IN": "X"}, {"OUT": "W"}), ("refuse", {"IN": "X"}, {"OUT": "Y"}), outputs=("W", "Y"))
    model = await server.ensemble(settings)
    inference = model.infer(ask(1))
    error = await error_of(inference)
    assert isinstance(error, InvalidRequest) and error.message == str(error) == "in ensemble 'ens', negative input"
    await settle()
    assert server.caller.models["wait"].statistics.fail.count == 1
    assert (model.statistics.fail.count, model.statistics.success.count) == (1, 0)
    await server.close()


async def test_a_step_that_is_refused_at_once_fails_the_request() -> None:
    server = Server()
    server.add_model("double", double, dynamic_batching=ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(max_queue_size=1)))
    model = await server.ensemble(ensemble(("double", {"IN": "X"}, {"OUT": "Y"})))
    await settle()
    inferences = [model.infer(ask(number)) for number in range(2)]
    assert len(await answers(inferences[0])) == 1
    error = await error_of(inferences[1])
    assert isinstance(error, Overloaded)
    assert error.message == "in ensemble 'ens', [request id: <id_unknown>] Exceeds maximum queue size"
    await server.close()


async def test_a_missing_output_is_named_with_its_step() -> None:
    server = Server()
    model = await server.ensemble(ensemble(("nothing", {"IN": "X"}, {"OUT": "mid"}), ("double", {"IN": "mid"}, {"OUT": "Y"})))
    error = await error_of(model.infer(ask(1)))
    assert error.message == "in ensemble 'ens', output 'Y' could not be computed: step 0 (model 'nothing') gave no output 'OUT'"
    await server.close()


@pytest.mark.parametrize(("value", "answer_"), [(2.0, 5.0), (None, 3.0)])
async def test_an_optional_input_may_be_left_out(value: float | None, answer_: float) -> None:
    server = Server()
    model = await server.ensemble(ensemble(("add", {"A": "X", "B": "Z"}, {"OUT": "Y"}), inputs=("X", "Z?")))
    given = [tensor("X", 3), *([] if value is None else [tensor("Z", value)])]
    [response] = await answers(model.infer(request(*given, model="ens")))
    assert outputs_of(response) == {"Y": [answer_]}
    await server.close()


DECOUPLED_STEPS = (
    ("count", {"IN": "X"}, {"OUT": "number"}),
    ("double", {"IN": "number"}, {"OUT": "doubled"}),
    ("add", {"A": "doubled", "B": "X"}, {"OUT": "Y"}),
)


async def test_after_a_decoupled_step_the_rest_runs_once_for_each_of_its_responses() -> None:
    server = Server()
    model = await server.ensemble(ensemble(*DECOUPLED_STEPS))
    assert model.signature.is_decoupled
    found = await answers(model.infer(ask(4)))
    assert [outputs_of(response) for response in found if not response.is_null] == [{"Y": [4]}, {"Y": [6]}, {"Y": [8]}, {"Y": [10]}]
    assert [response.is_final for response in found] == [False] * (len(found) - 1) + [True]
    assert [outputs_of(response) for response in await answers(model.infer(ask(0)))] == [{}]
    await server.close()


async def test_responses_keep_the_order_of_the_decoupled_step() -> None:
    server = Server()

    async def later_first(batch: Sequence[Execution]) -> None:
        [execution] = batch
        value = values_of(execution.request.inputs[0])[0]
        await asyncio.sleep(0.02 if value == 0 else 0)
        await double(batch)

    instances = [FunctionInstance(later_first, f"double_{number}") for number in range(3)]
    server.caller.models["double"] = build_model(config("double"), 1, instances, context())
    model = await server.ensemble(ensemble(*DECOUPLED_STEPS[:2], outputs=("doubled",)))
    found = await answers(model.infer(ask(3)))
    assert [outputs_of(response)["doubled"] for response in found if not response.is_null] == [[0], [2], [4]]
    await server.close()


async def test_decoupled_steps_may_follow_each_other() -> None:
    server = Server()
    settings = ensemble(("count", {"IN": "X"}, {"OUT": "outer"}), ("count", {"IN": "outer"}, {"OUT": "Y"}))
    model = await server.ensemble(settings)
    found = [outputs_of(response)["Y"][0] for response in await answers(model.infer(ask(4))) if not response.is_null]
    assert found == [0, 0, 1, 0, 1, 2]
    await server.close()


async def test_branches_under_an_answer_give_no_other() -> None:
    server = Server()
    settings = ensemble(
        ("double", {"IN": "X"}, {"OUT": "Y"}), ("count", {"IN": "Y"}, {"OUT": "number"}), ("double", {"IN": "number"}, {"OUT": "unused"})
    )
    model = await server.ensemble(settings)
    found = await answers(model.infer(ask(2)))
    assert [outputs_of(response) for response in found if not response.is_null] == [{"Y": [4]}]
    assert server.instances["double"].sizes == [1] * 5
    await server.close()


async def test_max_inflight_requests_bounds_what_a_decoupled_step_sets_off() -> None:
    server = Server()
    running = most = 0

    async def measure(batch: Sequence[Execution]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        await double(batch)

    server.caller.models["double"] = build_model(config("double"), 1, [FunctionInstance(measure, str(number)) for number in range(6)], context())
    for limit, expected in ((2, 2), (0, 6)):
        most = 0
        model = await server.ensemble(ensemble(*DECOUPLED_STEPS[:2], outputs=("doubled",), max_inflight_requests=limit))
        found = await answers(model.infer(ask(12)))
        assert [outputs_of(response)["doubled"][0] for response in found if not response.is_null] == [2.0 * number for number in range(12)]
        assert most == expected
    await server.close()


async def test_cancelling_an_ensemble_cancels_its_steps() -> None:
    server = Server()
    never = asyncio.Event()

    async def wait(batch: Sequence[Execution]) -> None:
        await never.wait()

    server.add_model("wait", wait)
    model = await server.ensemble(ensemble(("wait", {"IN": "X"}, {"OUT": "Y"})))
    inferences = [model.infer(ask(1)) for _ in range(2)]
    await settle()
    for inference in inferences:
        inference.cancel()
    assert server.caller.models["wait"].num_pending == 0
    assert isinstance(await error_of(inferences[0]), RequestCancelled)
    await server.close()


async def test_close_ends_what_runs() -> None:
    server = Server()
    model = await server.ensemble(DIAMOND)
    inference = model.infer(ask(1))
    await model.close()
    await model.close()
    assert isinstance(await error_of(inference), NotReady)
    with pytest.raises(NotReady):
        model.infer(ask(1))
    await server.close()


async def test_a_request_that_does_not_fit_is_refused_as_of_any_model() -> None:
    server = Server()
    model = await server.ensemble(DIAMOND)
    with pytest.raises(InvalidRequest, match="expected 1 inputs but got 0 inputs for model 'ens'"):
        model.infer(request(model="ens"))
    assert model.statistics.fail.count == 1
    await server.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (ensemble(), "has no step"),
        (ensemble(("", {"IN": "X"}, {"OUT": "Y"})), "step 0 names no model"),
        (ensemble(("a", {"IN": "X"}, {})), "has an empty output_map"),
        (ensemble(("a", {"IN": "nowhere"}, {"OUT": "Y"})), "input 'IN' of step 0 \\(model 'a'\\) takes tensor 'nowhere', which nothing gives"),
        (ensemble(("a", {"IN": "X"}, {"OUT": "Z"})), "no step gives output 'Y'"),
        (ensemble(("a", {"IN": "X"}, {"OUT": "Y"}), ("b", {"IN": "X"}, {"OUT": "Y"})), "is output 'OUT' of step 1 .* also an output of step 0"),
        (ensemble(("a", {"IN": "X"}, {"OUT": "X"})), "also an input of the ensemble"),
        (ensemble(("a", {"IN": "p", "I": "X"}, {"OUT": "Y"}), ("b", {"IN": "Y"}, {"OUT": "p"})), "wait for each other: step 0 .*, step 1"),
        (ensemble(("a", {"IN": "Y"}, {"OUT": "Y"})), "wait for each other"),
    ],
)
def test_steps_that_can_not_work(settings: ModelConfig, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=f"ensemble 'ens'.*{reason}"):
        ensemble_graph(settings)


def test_component_models_once_each() -> None:
    settings = ensemble(("a", {"IN": "X"}, {"OUT": "m"}), ("b", {"IN": "m"}, {"OUT": "n"}), ("a", {"IN": "n"}, {"OUT": "Y"}))
    settings.ensemble_scheduling.step[1].model_version = 3
    assert component_models(settings) == [("a", ""), ("b", "3")]

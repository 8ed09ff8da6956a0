"""The tensor half of the service: leases, counting, deadlines and drain around in-process models; and language models as tensor models."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers_kserve_models import CONFIGS, MORE_CONFIGS, make_repository, write_repository
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, NotReady, Overloaded, RequestCancelled, UnsupportedFeature
from trivium.infer import DataType, InferRequest, Tensor
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.repository.repository import ModelRepository
from trivium.service import InferenceService, ServiceLimits

MODELS = {name: {**CONFIGS, **MORE_CONFIGS}[name] for name in ("identity", "slow", "repeat_decoupled")}


@pytest.fixture
async def repository(tmp_path: Path) -> AsyncIterator[ModelRepository]:
    write_repository(tmp_path, MODELS)
    made = make_repository(tmp_path, control_mode="explicit", load_models=("*",))
    await made.start()
    yield made
    await made.close()


def _service(repository: ModelRepository, **limits: float) -> InferenceService:
    return InferenceService(ModelManager(), repository=repository, limits=ServiceLimits(**limits), registry=Registry())


def _identity(model: str = "identity", version: str = "") -> InferRequest:
    return InferRequest(model=model, version=version, inputs=[Tensor("INPUT0", DataType.FP32, (1, 16), bytes(64))])


def _slow() -> InferRequest:
    return InferRequest(model="slow", inputs=[Tensor("IN", DataType.FP32, (1,), bytes(4))])


async def test_an_inference_is_counted_until_it_ends(repository: ModelRepository) -> None:
    tensors = _service(repository).tensors
    inference = tensors.infer(_identity())
    assert tensors.num_running == 1
    responses = [response async for response in inference]
    assert [response.outputs[0].name for response in responses] == ["OUTPUT0"]
    assert tensors.num_running == 0


async def test_what_is_refused_leaves_nothing_behind(repository: ModelRepository) -> None:
    tensors = _service(repository).tensors
    with pytest.raises(ModelNotFound):
        tensors.infer(_identity("other"))
    with pytest.raises(ModelNotFound):
        tensors.infer(_identity(version="9"))
    with pytest.raises(InvalidRequest):
        tensors.infer(InferRequest(model="identity", inputs=[]))
    with pytest.raises(UnsupportedFeature, match="no streams here"):
        tensors.infer(InferRequest(model="repeat_decoupled", inputs=[]), decoupled_refusal="no streams here")
    assert tensors.num_running == 0
    await asyncio.wait_for(repository.unload("identity"), 5)


async def test_a_request_that_takes_too_long_fails(repository: ModelRepository) -> None:
    tensors = _service(repository, request_timeout_s=0.02).tensors
    with pytest.raises(DeadlineExceeded, match="0.02 s"):
        async for _ in tensors.infer(_slow()):
            pass
    assert tensors.num_running == 0


async def test_a_drain_waits_for_inferences_and_refuses_new_ones(repository: ModelRepository) -> None:
    service = _service(repository)
    inference = service.tensors.infer(_slow())
    drain = asyncio.create_task(service.drain(5))
    await asyncio.sleep(0.01)
    assert not drain.done()
    with pytest.raises(NotReady, match="shutting down"):
        service.tensors.infer(_identity())
    inference.cancel()
    assert await drain
    assert service.num_running == 0


async def test_what_a_drain_does_not_wait_for_fails(repository: ModelRepository) -> None:
    service = _service(repository)
    inference = service.tensors.infer(_slow())
    assert not await service.drain(0.01)
    with pytest.raises(NotReady, match="shutting down"):
        async for _ in inference:
            pass


async def test_the_server_is_ready_once_the_repository_has_started(tmp_path: Path) -> None:
    write_repository(tmp_path, MODELS)
    repository = make_repository(tmp_path, control_mode="explicit", load_models=("*",))
    service = _service(repository)
    assert not await service.is_ready()
    await repository.start()
    assert await service.is_ready()
    await repository.close()


async def test_signature(repository: ModelRepository) -> None:
    signature = _service(repository).tensors.signature("identity", "1")
    assert (signature.name, signature.version, signature.max_batch_size) == ("identity", 1, 64)


# -- language models --------------------------------------------------------------------------------------------------------------


class Llm:
    def __init__(self, **engine: float) -> None:
        self.engine = FakeEngine(**engine)
        self.manager = ModelManager()
        self.manager.add(("fake",), fake_backend(self.engine, Registry()))
        self.service = InferenceService(self.manager)
        self.tensors = self.service.tensors
        self.repository = self.service.tensors.repository


def _text(text: str, name: str = "text_input") -> Tensor:
    data = text.encode()
    return Tensor(name, DataType.BYTES, (1,), struct.pack("<I", len(data)) + data)


def _prompt(**parameters: object) -> InferRequest:
    return InferRequest(model="fake", id="r", inputs=[_text("abc")], parameters={"max_tokens": 3, **parameters})  # type: ignore[dict-item]


async def test_a_language_model_answers_tensors() -> None:
    llm = Llm()
    (response,) = [response async for response in llm.tensors.infer(_prompt())]
    assert (response.id, response.model, response.version) == ("r", "fake", "1")
    assert bytes(response.outputs[0].data)[4:] == b"abcabc"
    (statistics,) = llm.repository.statistics("fake")
    assert (statistics.inference_count, statistics.success.count) == (1, 1)
    assert llm.repository.statistics()[0] is statistics


async def test_the_repository_of_language_models_says_what_is_there() -> None:
    llm = Llm()
    repository = llm.repository
    assert [(line.name, line.version, line.state, line.reason) for line in repository.index(ready_only=True)] == [("fake", "1", "READY", "")]
    assert repository.is_ready("fake") and repository.is_ready("fake", "1")
    assert not repository.is_ready("other")
    assert list(repository.versions("fake")) == [1]
    assert repository.config("fake").input[0].name == "text_input"
    assert await llm.service.is_ready()
    with pytest.raises(ModelNotFound, match="Request for unknown model: 'other' is not found"):
        repository.lease("other")
    with pytest.raises(ModelNotFound, match="version 2 is not found"):
        repository.lease("fake", "2")
    with pytest.raises(InvalidRequest, match="stol"):
        repository.lease("fake", "abc")
    with pytest.raises(InvalidRequest, match="requested model 'other' is not available"):
        repository.statistics("other")
    for change in (repository.load("fake"), repository.unload("fake")):
        with pytest.raises(NotReady, match="no model repository"):
            await change


async def test_a_tensor_model_is_told_from_an_unknown_one(repository: ModelRepository) -> None:
    service = _service(repository)
    with pytest.raises(ModelNotFound, match=r"^The model 'identity' is not a language model: it answers under /v2/models/identity\."):
        service.model("identity")
    with pytest.raises(ModelNotFound, match=r"^The model 'other' does not exist\. No language model is served here\.$"):
        service.model("other")


async def test_a_model_that_is_loading_is_in_the_index_once() -> None:
    manager = ModelManager()
    manager.expect(("late", "alias"))
    service = InferenceService(manager)
    assert [line.state for line in service.tensors.repository.index(ready_only=False)] == ["LOADING"]
    assert not service.tensors.repository.index(ready_only=True)
    assert not await service.is_ready()


async def test_a_cancelled_prompt_is_taken_from_the_engine() -> None:
    llm = Llm()
    inference = llm.tensors.infer(_prompt(max_tokens=200))
    await asyncio.sleep(0)
    inference.cancel()
    with pytest.raises(RequestCancelled):
        async for _ in inference:
            pass
    assert llm.tensors.num_running == 0


async def test_tensor_requests_take_turns_with_all_others() -> None:
    manager = ModelManager()
    manager.add(("fake",), fake_backend(FakeEngine(max_num_seqs=1, step_s=0.005), Registry()))
    service = InferenceService(manager, limits=ServiceLimits(is_fair=True))

    async def ask(client: str) -> float:
        request = _prompt(max_tokens=10)
        request.client = client
        _ = [response async for response in service.tensors.infer(request)]
        return time.monotonic()

    crowd = [asyncio.create_task(ask("crowd")) for _ in range(8)]
    await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    late = await ask("late")
    ends = sorted(await asyncio.gather(*crowd))
    assert late < ends[5]


async def test_a_prompt_waits_for_its_turn_no_longer_than_it_may() -> None:
    manager = ModelManager()
    manager.add(("fake",), fake_backend(FakeEngine(max_num_seqs=1), Registry()))
    service = InferenceService(manager, limits=ServiceLimits(queue_timeout_s=0.05))
    inferences = [service.tensors.infer(_text_request("!hang")) for _ in range(4)]
    with pytest.raises(Overloaded, match="turn did not come within 0.05 s"):
        async for _ in inferences[3]:
            pass
    for inference in inferences:
        inference.cancel()
    assert service.tensors.num_running == 0


def _text_request(prompt: str) -> InferRequest:
    return InferRequest(model="fake", inputs=[_text(prompt)])

"""`InferenceService` around scripted engines: names, admission, deadlines, health, drain; and that whatever is taken is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.backends.base import ChatPrompt
from trivium.errors import DeadlineExceeded, EngineDead, InvalidRequest, ModelNotFound, NotReady, Overloaded, PromptTooLong, RequestCancelled
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService, ServiceLimits
from trivium.types import ChatMessage, GenerateRequest, PromptInfo, SamplingParams, TokenEvent


class Setup:
    def __init__(self, *, limits: ServiceLimits | None = None, **engine: Any) -> None:
        self.registry = Registry()
        self.engine = FakeEngine(**engine)
        self.manager = ModelManager()
        self.manager.add(("fake", "alias"), fake_backend(self.engine, self.registry))
        self.service = InferenceService(self.manager, limits=limits, registry=self.registry)


def request(prompt: str = "abc", *, model: str = "fake", n: int = 1, timeout_s: float | None = None, **params: Any) -> GenerateRequest:
    values = {"max_tokens": 4, "temperature": 0.0, **params}
    return GenerateRequest(request_id="r", model=model, prompt=prompt, params=SamplingParams(**values), n=n, timeout_s=timeout_s)


async def text_of(service: InferenceService, one: GenerateRequest) -> str:
    generation = service.generate(one)
    try:
        return "".join([event.text async for event in generation if isinstance(event, TokenEvent)])
    finally:
        await generation.aclose()


async def test_the_prompt_comes_first_and_then_events() -> None:
    setup = Setup()
    events = [event async for event in setup.service.generate(request())]
    assert isinstance(events[0], PromptInfo)
    assert (events[0].prompt, events[0].prompt_token_ids) == ("abc", [97, 98, 99])
    assert all(isinstance(event, TokenEvent) for event in events[1:])
    assert setup.service.num_running == 0


async def test_names() -> None:
    service = Setup().service
    assert [info.name for info in service.models()] == ["fake", "alias"]
    assert service.model("alias").name == "alias"
    assert service.model("").name == "fake"
    assert await text_of(service, request(model="")) == "abca"
    assert await text_of(service, request(model="alias")) == "abca"
    for call in (lambda: service.model("other"), lambda: service.generate(request(model="other"))):
        with pytest.raises(ModelNotFound) as missing:
            call()
        assert missing.value.param == "model"
        assert missing.value.message == "The model 'other' does not exist. Models here: fake."


async def test_an_unknown_name_is_answered_with_those_that_are_there() -> None:
    manager = ModelManager()
    service = InferenceService(manager)
    for name, message in (("x", "The model 'x' does not exist. No language model is served here."), ("", "No language model is served here.")):
        with pytest.raises(ModelNotFound) as missing:
            service.model(name)
        assert missing.value.message == message
    for number in range(7):
        manager.expect((f"m{number}", f"alias{number}"))
    with pytest.raises(ModelNotFound, match="'x' does not exist. Models here: m0, m1, m2, m3, m4 and 2 more."):
        service.model("x")


async def test_tokens_and_text() -> None:
    service = Setup().service
    assert await service.tokenize("fake", "aé") == [97, 195, 169]
    assert await service.detokenize("fake", [97, 195, 169]) == "aé"
    vocabulary = service.vocabulary("fake")
    assert vocabulary.token_strings([97, 195]) == ["a", "\ufffd"]
    assert vocabulary.token_bytes([97, 195]) == [b"a", b"\xc3"]
    ids = await service.tokenize_chat("fake", ChatPrompt(messages=[ChatMessage(role="user", content="x")], add_generation_prompt=False))
    assert await service.detokenize("fake", ids) == "<|im_start|>user\nx<|im_end|>\n"


async def test_a_bad_request_gives_back_what_it_took() -> None:
    setup = Setup(limits=ServiceLimits(max_queued=0), max_num_seqs=1)
    for _ in range(3):
        generation = setup.service.generate(request("x" * 2000))
        with pytest.raises(PromptTooLong):
            await generation.start()
        await generation.aclose()
    assert setup.service.num_running == 0
    assert await text_of(setup.service, request()) == "abca"


async def test_admission_counts_sequences_and_recovers() -> None:
    setup = Setup(limits=ServiceLimits(max_queued=2), max_num_seqs=2)
    held = [setup.service.generate(request(n=2)), setup.service.generate(request(n=2))]
    with pytest.raises(Overloaded) as full:
        setup.service.generate(request())
    assert full.value.retry_after_s == 2
    await held[0].aclose()
    assert await text_of(setup.service, request()) == "abca"
    with pytest.raises(InvalidRequest):
        setup.service.generate(request(n=5))
    await held[1].aclose()
    assert await text_of(setup.service, request(n=4)) == "aaaabbbbccccaaaa"


async def test_requests_that_belong_together_are_admitted_together() -> None:
    setup = Setup(limits=ServiceLimits(max_queued=0), max_num_seqs=3)
    first = setup.service.generate(request())
    with pytest.raises(Overloaded):
        setup.service.generate_all([request(), request(), request()])
    both = setup.service.generate_all([request(), request()])
    for generation in (first, *both):
        await generation.aclose()
    assert setup.service.num_running == 0


async def test_closing_stops_the_engine_and_can_be_done_twice() -> None:
    setup = Setup(step_s=0.001)
    generation = setup.service.generate(request(max_tokens=1000))
    assert isinstance(await anext(generation), PromptInfo)
    await generation.aclose()
    await generation.aclose()
    assert len(setup.engine.aborted) == 1
    assert setup.service.num_running == 0
    with pytest.raises(StopAsyncIteration):
        await anext(generation)


async def test_a_request_that_was_never_read_can_be_closed() -> None:
    setup = Setup()
    generation = setup.service.generate(request())
    await generation.aclose()
    assert setup.engine.submitted == []
    assert setup.service.num_running == 0


@pytest.mark.parametrize("limits", [ServiceLimits(request_timeout_s=0.05), ServiceLimits(request_timeout_s=9)])
async def test_the_shorter_deadline_counts(limits: ServiceLimits) -> None:
    setup = Setup(limits=limits)
    own = None if limits.request_timeout_s == 0.05 else 0.05
    with pytest.raises(DeadlineExceeded):
        await text_of(setup.service, request("!hang", max_tokens=100, timeout_s=own))
    assert len(setup.engine.aborted) == 1
    assert setup.service.num_running == 0


async def test_a_deadline_that_was_kept_does_nothing() -> None:
    setup = Setup()
    generation = setup.service.generate(request(timeout_s=0.05))
    events = [event async for event in generation]
    await asyncio.sleep(0.08)
    assert len(events) == 5
    generation.fail(RequestCancelled("too late"))
    with pytest.raises(StopAsyncIteration):
        await anext(generation)


async def test_unknown_engines_death_reaches_the_request() -> None:
    setup = Setup()
    with pytest.raises(EngineDead):
        await text_of(setup.service, request("!die", max_tokens=100))
    assert setup.service.num_running == 0
    with pytest.raises(NotReady):
        await text_of(setup.service, request())


# -- health -------------------------------------------------------------------------------------------------------------------------


async def test_healthy_and_ready() -> None:
    service = Setup().service
    service.check_health()
    await service.check_ready()
    await service.check_ready()


async def test_a_server_without_models_or_that_still_loads_is_neither() -> None:
    manager = ModelManager()
    service = InferenceService(manager)
    for _ in range(2):
        with pytest.raises(NotReady):
            service.check_health()
        with pytest.raises(NotReady):
            await service.check_ready()
        manager.expect(("soon",)) if not manager.states() else None
    with pytest.raises(NotReady, match="loading"):
        service.generate(request(model="soon"))
    manager.set_failed("soon", "no such file")
    with pytest.raises(NotReady, match="failed: no such file"):
        service.model("soon")


async def test_a_dead_engine_is_neither() -> None:
    setup = Setup(restart_s=0.05)
    setup.engine.die()
    with pytest.raises(NotReady):
        setup.service.check_health()
    with pytest.raises(NotReady):
        await setup.service.check_ready()
    await asyncio.sleep(0.1)
    setup.service.check_health()
    await setup.service.check_ready()


async def test_concurrent_readiness_checks_share_a_probe() -> None:
    setup = Setup()
    probes = 0
    original = setup.engine.probe

    async def counting(timeout_s: float) -> Any:
        nonlocal probes
        probes += 1
        await asyncio.sleep(0.01)
        return await original(timeout_s)

    setup.engine.probe = counting  # type: ignore[method-assign]
    await asyncio.gather(*(setup.service.check_ready() for _ in range(5)))
    assert probes == 1
    await setup.service.check_ready()
    assert probes == 2


async def test_a_late_answer_is_forgiven_until_the_limit() -> None:
    setup = Setup(limits=ServiceLimits(probe_timeout_s=0.4))
    await setup.service.check_ready()
    setup.engine.is_hanging = True
    await setup.service.check_ready()
    await asyncio.sleep(0.25)
    with pytest.raises(NotReady):
        await setup.service.check_ready()
    setup.engine.is_hanging = False
    await setup.service.check_ready()


async def test_an_old_answer_is_no_reason_to_doubt_an_idle_engine() -> None:
    setup = Setup(limits=ServiceLimits(probe_timeout_s=0.02))
    await setup.service.check_ready()
    await asyncio.sleep(0.05)
    await setup.service.check_ready()


async def test_an_engine_that_never_answered_is_not_ready() -> None:
    setup = Setup(limits=ServiceLimits(probe_timeout_s=0.05))
    setup.engine.is_hanging = True
    with pytest.raises(NotReady):
        await setup.service.check_ready()
    await setup.service.close()


# -- the end ------------------------------------------------------------------------------------------------------------------------


async def test_draining_waits_for_what_was_accepted() -> None:
    setup = Setup(step_s=0.005)
    running = asyncio.create_task(text_of(setup.service, request(max_tokens=20)))
    await asyncio.sleep(0.02)
    setup.service.begin_drain()
    assert setup.service.is_draining
    with pytest.raises(NotReady):
        await setup.service.check_ready()
    assert await text_of(setup.service, request()) == "abca"
    assert await setup.service.drain(5)
    assert len(await running) == 20
    with pytest.raises(NotReady):
        setup.service.generate(request())
    await setup.service.close()
    assert setup.engine.is_closed


async def test_at_the_limit_the_rest_fails() -> None:
    setup = Setup(step_s=0.005)
    running = asyncio.create_task(text_of(setup.service, request(max_tokens=1000)))
    idle = setup.service.generate(request())
    await asyncio.sleep(0.02)
    assert not await setup.service.drain(0.01)
    with pytest.raises(NotReady, match="shutting down"):
        await running
    with pytest.raises(NotReady, match="shutting down"):
        await anext(idle)
    assert setup.service.num_running == 0


async def test_closing_ends_a_probe_that_waits() -> None:
    setup = Setup(limits=ServiceLimits(probe_timeout_s=5))
    setup.engine.is_hanging = True
    waiting = asyncio.create_task(setup.service.check_ready())
    await asyncio.sleep(0.01)
    await asyncio.wait_for(setup.service.close(), 1)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await setup.service.close()


async def test_scrapes_at_the_same_time_share_a_page() -> None:
    setup = Setup()
    pages = await asyncio.gather(*(setup.service.render_metrics() for _ in range(5)))
    assert all(page is pages[0] for page in pages)
    assert await setup.service.render_metrics() is not pages[0]
    await setup.service.close()


async def test_metrics_are_fresh() -> None:
    setup = Setup()
    await text_of(setup.service, request())
    page = (await setup.service.render_metrics()).decode()
    assert 'vllm:num_requests_running{engine="0",model_name="fake"} 0.0' in page
    assert 'vllm:generation_tokens_total{engine="0",model_name="fake"} 4.0' in page
    assert 'trivium:engine_up{engine="0",model_name="fake"} 1.0' in page


# -- leases -------------------------------------------------------------------------------------------------------------------------


async def test_an_unload_waits_for_open_requests() -> None:
    setup = Setup(step_s=0.005)
    running = asyncio.create_task(text_of(setup.service, request(max_tokens=20)))
    await asyncio.sleep(0.02)
    unloading = asyncio.create_task(setup.manager.unload("fake"))
    await asyncio.sleep(0.01)
    with pytest.raises(NotReady, match="unloading"):
        setup.service.generate(request())
    assert not unloading.done()
    assert len(await running) == 20
    await unloading
    assert setup.engine.is_closed
    assert setup.manager.states() == {}
    with pytest.raises(ModelNotFound):
        setup.service.generate(request())


async def test_a_lease_is_released_once() -> None:
    setup = Setup()
    lease, other = setup.manager.lease("fake"), setup.manager.lease("alias")
    lease.release()
    lease.release()
    unloading = asyncio.create_task(setup.manager.unload("alias"))
    await asyncio.sleep(0)
    assert not unloading.done()
    other.release()
    await unloading


async def test_a_failed_model_can_be_taken_away() -> None:
    manager = ModelManager()
    manager.expect(("bad",))
    manager.set_failed("bad", "why")
    await manager.unload("bad")
    assert manager.states() == {}
    await manager.close()

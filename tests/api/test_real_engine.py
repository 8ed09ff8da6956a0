"""The whole server on the packaged model: answers, a storm of disconnects, a killed engine, an orderly end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from helpers_real_server import MODEL, RealServer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    process = RealServer("--max-num-seqs", "32", "--max-model-len", "1024")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


def test_readme_question_is_answered_sensibly(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=5, temperature=0)
    assert "Paris" in completion.choices[0].text
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (5, 5)
    chat = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, temperature=0)  # type: ignore[arg-type]
    assert "Paris" in (chat.choices[0].message.content or "")


@pytest.mark.parametrize("prompt", ["Once upon a time", "北京是", "Emoji: 😀🎉👩‍👩‍👧 and", "မြန်မာ"])
@pytest.mark.parametrize(
    "extra", [{}, {"temperature": 0.9, "seed": 3, "top_p": 0.9}, {"stop": [" the", "。", "e"]}], ids=["greedy", "seeded", "stop"]
)
def test_stream_equals_whole(client: openai.OpenAI, prompt: str, extra: dict[str, object]) -> None:
    arguments = {"model": MODEL, "prompt": prompt, "max_tokens": 48, "temperature": 0, **extra}
    whole = client.completions.create(**arguments)  # type: ignore[call-overload]
    chunks = list(client.completions.create(**arguments, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_logprobs_are_of_the_tokens_given(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=3, echo=True)
    found = whole.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None and found.token_logprobs is not None and found.top_logprobs is not None
    assert "".join(found.tokens) == whole.choices[0].text
    assert found.token_logprobs[0] is None
    assert all(value <= 0 for value in found.token_logprobs[1:])
    # Greedy: each generated token is the most likely one.
    for token, logprob, top in zip(found.tokens[5:], found.token_logprobs[5:], found.top_logprobs[5:], strict=True):
        assert top[token] == pytest.approx(logprob) == pytest.approx(max(top.values()))


def test_choices_of_one_prompt_share_it_and_differ(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="My favourite animal is", max_tokens=12, n=4, temperature=1.0, seed=5)
    texts = [choice.text for choice in sorted(whole.choices, key=lambda choice: choice.index)]
    assert len(set(texts)) > 1
    again = client.completions.create(model=MODEL, prompt="My favourite animal is", max_tokens=12, n=4, temperature=1.0, seed=5)
    assert [choice.text for choice in sorted(again.choices, key=lambda choice: choice.index)] == texts


async def storm(url: str, *, num_requests: int, share_disconnecting: float, at_once: int) -> int:
    """Sends requests of which some are dropped at random points; returns how many were answered whole."""
    source = random.Random(1)
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)

    async def one(client: httpx.AsyncClient, index: int) -> int:
        tokens = source.randrange(2, 12)
        is_stream, is_dropped = index % 2 == 0, source.random() < share_disconnecting
        # Every fifth prompt is one of a few, so that drops also hit shared and half-computed prefixes.
        prompt = [100 + index % 3] * 40 if index % 5 == 0 else [source.randrange(100, 40_000) for _ in range(source.randrange(1, 40))]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": is_stream}
        async with gate:
            try:
                async with asyncio.timeout(source.uniform(0.0, 0.5) if is_dropped else 60):
                    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                        assert answer.status_code == 200
                        text = (await answer.aread()).decode()
                        if is_stream:
                            assert text.endswith("data: [DONE]\n\n")
                        else:
                            assert json.loads(text)["usage"]["completion_tokens"] == tokens
                        return 1
            except TimeoutError:
                assert is_dropped
                return 0

    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        return sum(await asyncio.gather(*(one(client, index) for index in range(num_requests))))


def test_a_storm_of_disconnects_leaves_nothing_behind(server: RealServer, client: openai.OpenAI) -> None:
    def answer() -> str:
        return client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=16, temperature=0).choices[0].text

    before = answer()
    answered = asyncio.run(storm(server.url, num_requests=1000, share_disconnecting=0.3, at_once=48))
    assert 600 < answered < 1000
    deadline = time.monotonic() + 2.0
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    while any(server.gauge(name) for name in names):
        assert time.monotonic() < deadline, {name: server.gauge(name) for name in names}
        time.sleep(0.05)
    assert answer() == before
    ends = {key: value for key, value in server.metrics().items() if key.startswith("vllm:request_success_total")}
    assert sum(value for key, value in ends.items() if "abort" in key) > 0
    assert sum(value for key, value in ends.items() if "error" in key) == 0


def test_a_killed_engine_is_told_and_healed(server: RealServer, client: openai.OpenAI) -> None:
    before = client.completions.create(model=MODEL, prompt="One two three", max_tokens=8, temperature=0).choices[0].text
    body = {"model": MODEL, "prompt": "One two three", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(server.engine_pid(), signal.SIGKILL)
        killed_at = time.monotonic()
        while server.readiness() != 503:
            assert time.monotonic() - killed_at < 1.0
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert httpx.get(f"{server.url}/livez").status_code == 200
    with pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model=MODEL, prompt="One two three", max_tokens=8)
    assert refused.value.status_code == 503
    server.wait_until_ready()
    assert client.completions.create(model=MODEL, prompt="One two three", max_tokens=8, temperature=0).choices[0].text == before


def test_sigterm_lets_accepted_requests_finish_and_ends_with_0() -> None:
    server = RealServer("--max-model-len", "1024")
    body = {"model": MODEL, "prompt": "Count", "max_tokens": 60, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.terminate()
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    code, log = server.stop(), server.last_log
    assert code == 0, log

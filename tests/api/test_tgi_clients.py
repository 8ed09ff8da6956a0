"""The two client libraries that TGI's users have: huggingface_hub's InferenceClient and text_generation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers_server import ServerProcess
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

ROOT = Path(__file__).parents[2]
LEGACY = ROOT / ".venv" / "legacy-clients"
HELPER = Path(__file__).parent / "helpers_legacy_client.py"


@pytest.fixture(scope="module")
def hub(server: ServerProcess) -> InferenceClient:
    return InferenceClient(server.url, timeout=20)


def test_text(hub: InferenceClient) -> None:
    assert hub.text_generation("abcdef", max_new_tokens=8, return_full_text=False) == "abcdefab"


def test_details(hub: InferenceClient) -> None:
    answer = hub.text_generation(
        "abcdef", max_new_tokens=3, details=True, decoder_input_details=True, top_n_tokens=2, return_full_text=False, seed=3, do_sample=True
    )
    assert answer.generated_text == "def"
    assert answer.details is not None
    assert (answer.details.finish_reason, answer.details.generated_tokens, answer.details.seed) == ("length", 3, 3)
    assert [token.text for token in answer.details.tokens] == ["d", "e", "f"]
    assert len(answer.details.prefill) == 6
    assert [len(step) for step in answer.details.top_tokens or []] == [2, 2, 2]


def test_best_of(hub: InferenceClient) -> None:
    answer = hub.text_generation("abcdef", max_new_tokens=3, details=True, best_of=2, do_sample=True)
    assert answer.details is not None
    assert len(answer.details.best_of_sequences or []) == 1


@pytest.mark.parametrize("text", ["abc", "你好,世界", "a😀b"])
def test_streams(hub: InferenceClient, text: str) -> None:
    whole = hub.text_generation(text, max_new_tokens=20, return_full_text=False)
    assert "".join(hub.text_generation(text, max_new_tokens=20, stream=True, return_full_text=False)) == whole
    events = list(hub.text_generation(text, max_new_tokens=20, stream=True, details=True, return_full_text=False))
    assert events[-1].generated_text == whole
    assert events[-1].details is not None
    assert (events[-1].details.finish_reason, events[-1].details.generated_tokens, events[-1].details.input_length) == (
        "length",
        20,
        len(text.encode()),
    )
    assert [event.index for event in events] == list(range(1, 21))


async def test_the_async_client(server: ServerProcess) -> None:
    client = AsyncInferenceClient(server.url, timeout=20)
    assert await client.text_generation("abc", max_new_tokens=4, return_full_text=False) == "abca"
    stream = await client.text_generation("abc", max_new_tokens=4, stream=True)
    assert "".join([text async for text in stream]) == "abca"
    await client.close()


def test_chat(hub: InferenceClient) -> None:
    messages = [{"role": "user", "content": "x"}]
    answer = hub.chat_completion(messages, model="fake", max_tokens=4, temperature=0)
    assert answer.choices[0].message.content == "user"
    chunks = hub.chat_completion(messages, model="fake", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "user"


def test_information(server: ServerProcess) -> None:
    client = InferenceClient(server.url, provider="hf-inference", timeout=20)
    assert client.get_endpoint_info()["model_id"] == "fake"
    assert client.health_check()


def test_error_classes(hub: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="`max_new_tokens`"):
        hub.text_generation("abc", max_new_tokens=5000)
    with pytest.raises(ValidationError, match="`temperature`"):
        list(hub.text_generation("abc", temperature=0, stream=True))
    with pytest.raises(GenerationError):
        hub.text_generation("!fail abc", max_new_tokens=9)
    with pytest.raises(GenerationError):
        list(hub.text_generation("!fail abc", max_new_tokens=9, stream=True))


def test_a_full_queue_is_an_overloaded_model() -> None:
    process = ServerProcess(http={"max_concurrent_requests": 1})
    try:
        with process.http() as http, http.stream("POST", "/generate_stream", json={"inputs": "!hang abc"}) as held:
            chunks = held.iter_raw()  # closes the connection when it is dropped
            next(chunks)
            with pytest.raises(OverloadedError, match="Model is overloaded"):
                InferenceClient(process.url, timeout=20).text_generation("abc")
    finally:
        process.stop()


def test_names_that_tgis_clients_send_for_the_model() -> None:
    process = ServerProcess(http={"ignore_unknown_models": True, "ignore_unknown_fields": True})
    try:
        messages = [{"role": "user", "content": "x"}]
        answer = InferenceClient(process.url, timeout=20).chat_completion(messages, max_tokens=4, temperature=0)
        assert answer.choices[0].message.content == "user"
        with process.openai() as client:
            for name in ("tgi", "some-org/some-model"):
                assert client.chat.completions.create(model=name, messages=messages, max_tokens=4).model == name  # type: ignore[arg-type]
    finally:
        process.stop()


@pytest.fixture(scope="module")
def legacy() -> dict[str, Any]:
    """What the text_generation library makes of a server of its own, which one of its requests kills the engine of."""
    assert (LEGACY / "text_generation").is_dir(), "make setup-dev installs the text_generation client"
    process = ServerProcess(http={"ignore_unknown_models": True, "ignore_unknown_fields": True})
    try:
        command = [sys.executable, str(HELPER), process.url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(LEGACY)}, check=False)
        assert run.returncode == 0, run.stderr
        found: dict[str, Any] = json.loads(run.stdout)
        return found
    finally:
        process.stop()


def test_the_text_generation_library(legacy: dict[str, Any]) -> None:
    assert (legacy["text"], legacy["finish_reason"]) == ("abcd", "length")
    assert legacy["prefill"] == [None, *[-0.5] * 5]
    assert legacy["tokens"] == list("abcd")
    assert legacy["top_tokens"] == [[97, 98], [98, 99], [99, 100], [100, 101]]
    assert legacy["num_best_of_sequences"] == 1
    assert legacy["streamed"] == legacy["streamed_text"] == "a你😀a"
    assert legacy["streamed_tokens"] == 9
    assert legacy["from_async_client"] == ["ab", "a", "b"]
    assert legacy["chat"] == "user"


def test_the_text_generation_librarys_error_classes(legacy: dict[str, Any]) -> None:
    assert legacy["errors"] == {
        "validation": "ValidationError",
        "validation_of_stream": "ValidationError",
        "generation": "GenerationError",
        "generation_in_stream": "GenerationError",
        "unhealthy": "GenerationError",
    }

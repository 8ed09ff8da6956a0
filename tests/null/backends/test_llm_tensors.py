"""Language models behind Triton's vLLM tensors: prompts, parameters, optional outputs, streams."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Iterable
from typing import Any

import pytest
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.backends.llm_repository import tensors_for
from trivium.backends.llm_tensor_params import parse_llm_request
from trivium.backends.llm_tensors import LlmTensorModel
from trivium.errors import InvalidRequest, Overloaded, UnknownField, UnsupportedFeature
from trivium.infer import DataType, InferRequest, InferResponse, RequestedOutput, Tensor
from trivium.metrics.instruments import Registry
from trivium.protocol.model_config import TYPE_STRING, ModelConfig
from trivium.types import StructuredOutputsParams


def _model(*, own_names: bool = False, max_batch_size: int = 0, **engine: float) -> LlmTensorModel:
    config = ModelConfig(name="m", backend="vllm", max_batch_size=max_batch_size)
    if own_names:
        config.input.add(name="text", data_type=TYPE_STRING, dims=[1])
        config.output.add(name="output", data_type=TYPE_STRING, dims=[1])
    config.MergeFrom(tensors_for(config))
    return LlmTensorModel(fake_backend(FakeEngine(**engine), Registry()), config, 1)


def _strings(name: str, values: Iterable[str], shape: tuple[int, ...] | None = None) -> Tensor:
    encoded = [value.encode() for value in values]
    data = b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return Tensor(name, DataType.BYTES, shape or (len(encoded),), data)


def _flag(name: str, value: bool = True) -> Tensor:
    return Tensor(name, DataType.BOOL, (1,), b"\x01" if value else b"\x00")


def _request(*tensors: Tensor, outputs: Iterable[str] = (), **parameters: Any) -> InferRequest:
    inputs = list(tensors) if any(tensor.name in ("text_input", "text") for tensor in tensors) else [_strings("text_input", ["abc"]), *tensors]
    given = {"max_tokens": 4, **parameters}
    return InferRequest(model="m", inputs=inputs, outputs=[RequestedOutput(name=name) for name in outputs], parameters=given)


async def _answers(model: LlmTensorModel, request: InferRequest) -> list[InferResponse]:
    return [response async for response in model.infer(request)]


def _texts(response: InferResponse, name: str = "text_output") -> list[str]:
    data = next(bytes(tensor.data) for tensor in response.outputs if tensor.name == name)
    found: list[str] = []
    while data:
        length = struct.unpack_from("<I", data)[0]
        found.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return found


async def test_the_answer_begins_with_the_prompt_unless_told_otherwise() -> None:
    model = _model()
    (response,) = await _answers(model, _request())
    assert _texts(response) == ["abcabca"]
    (response,) = await _answers(model, _request(_flag("exclude_input_in_output")))
    assert _texts(response) == ["abca"]
    assert response.is_final


async def test_a_stream_carries_what_is_new_and_ends() -> None:
    responses = await _answers(_model(), _request(_flag("stream")))
    assert "".join(text for response in responses for text in _texts(response)) == "abca"
    assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]


async def test_optional_outputs_come_when_they_are_asked_for() -> None:
    flags = [_flag(f"return_{name}") for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")]
    (response,) = await _answers(_model(), _request(*flags))
    found = {tensor.name: tensor for tensor in response.outputs}
    assert list(found) == ["text_output", "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]
    assert _texts(response, "finish_reason") == ["length"]
    assert struct.unpack("<I", found["num_input_tokens"].data) == (3,)
    assert struct.unpack("<I", found["num_output_tokens"].data) == (4,)
    logprobs = json.loads(_texts(response, "logprobs")[0])
    assert len(logprobs) == 4
    total = sum(next(iter(token.values()))["logprob"] for token in logprobs)
    assert struct.unpack("<f", found["cumulative_logprob"].data)[0] == pytest.approx(total)


async def test_only_requested_outputs_come_back() -> None:
    (response,) = await _answers(_model(), _request(_flag("return_finish_reason"), outputs=["finish_reason"]))
    assert [tensor.name for tensor in response.outputs] == ["finish_reason"]


async def test_a_configuration_may_have_names_and_batches_of_its_own() -> None:
    model = _model(own_names=True, max_batch_size=8)
    assert not model.signature.is_decoupled
    prompts = _strings("text", ["abc", "xy"], (2, 1))
    (response,) = await _answers(model, _request(prompts, Tensor("exclude_input_in_output", DataType.BOOL, (2, 1), b"\x01\x01")))
    assert (response.outputs[0].name, response.outputs[0].shape) == ("output", (2, 1))
    assert _texts(response, "output") == ["abca", "xyxy"]
    assert model.statistics.inference_count == 2


async def test_sampling_parameters_come_as_json_or_as_request_parameters() -> None:
    model = _model()
    (response,) = await _answers(
        model, _request(_strings("sampling_parameters", ['{"max_tokens": "2", "n": 2, "temperature": 1}']), temperature="0.5")
    )
    assert response.outputs[0].shape == (2,)
    assert all(len(text) == 5 for text in _texts(response))


@pytest.mark.parametrize(
    ("tensors", "parameters", "error", "text"),
    [
        ([_flag("stream"), _flag("exclude_input_in_output", value=False)], {}, InvalidRequest, "When streaming"),
        ([], {"colour": 1}, UnknownField, "'colour' is not a sampling parameter"),
        ([], {"lora_name": "x"}, UnsupportedFeature, "lora_name"),
        ([], {"temperature": "hot"}, InvalidRequest, "sampling parameters"),
        ([], {"temperature": -1.0}, InvalidRequest, "temperature"),
        ([_strings("sampling_parameters", ["[1]"])], {}, InvalidRequest, "one JSON object"),
        ([_strings("sampling_parameters", ["{"])], {}, InvalidRequest, "one JSON object"),
        ([_strings("sampling_parameters", ['{"structured_outputs": {}}'])], {}, InvalidRequest, "Exactly one of json, regex"),
        ([Tensor("text_input", DataType.BYTES, (1,), b"\x01\x00\x00\x00\xff")], {}, InvalidRequest, "not UTF-8"),
        ([_strings("other", ["x"])], {}, InvalidRequest, "unexpected inference input 'other'"),
    ],
)
async def test_what_is_wrong_is_said_at_once(tensors: list[Tensor], parameters: dict[str, Any], error: type[Exception], text: str) -> None:
    model = _model()
    with pytest.raises(error, match=text):
        model.infer(_request(*tensors, **parameters))
    assert model.statistics.fail.count == 1


def test_structured_outputs_are_sampling_parameters() -> None:
    request = _request(_strings("sampling_parameters", ['{"structured_outputs": {"choice": ["a", "b"]}}']))
    assert parse_llm_request(request, _model().signature).params.structured_outputs == StructuredOutputsParams(choice=["a", "b"])


async def test_a_stream_takes_one_prompt() -> None:
    model = _model(own_names=True, max_batch_size=8)
    stream = Tensor("stream", DataType.BOOL, (2, 1), b"\x01\x01")
    with pytest.raises(UnsupportedFeature, match="one prompt"):
        model.infer(_request(_strings("text", ["a", "b"], (2, 1)), stream))


async def test_too_many_prompts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    monkeypatch.setattr("trivium.backends.llm_tensors.MAX_QUEUED", -model._backend.max_num_seqs + 1)
    first = model.infer(_request(max_tokens=100))
    with pytest.raises(Overloaded):
        model.infer(_request())
    first.cancel()
    await _answers(model, _request())


async def test_closing_ends_what_runs() -> None:
    model = _model()
    inference = model.infer(_request(max_tokens=100))
    await asyncio.sleep(0)
    await model.close()
    with pytest.raises(Exception, match="unloaded"):
        await _first(inference)


async def _first(inference: Any) -> Any:
    return await anext(inference)


async def test_prompts_of_a_request_are_continued_side_by_side() -> None:
    request = _request(_strings("text_input", ["abc"] * 4, (4, 1)), max_tokens=20)
    began = time.monotonic()
    (response,) = await _answers(_model(max_batch_size=4, step_s=0.01), request)
    assert len(_texts(response)) == 4
    # One after the other they take 0.8 s.
    assert time.monotonic() - began < 0.5

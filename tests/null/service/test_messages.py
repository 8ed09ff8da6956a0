"""Messages between client and engine survive the wire, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trivium.protocol import messages as m
from trivium.types import SamplingParams

TO_ENGINE: list[m.ToEngine] = [
    m.Hello(),
    m.AddRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        params=SamplingParams(stop=["a"], logit_bias={5: -1.5}, seed=2**64 - 1),
        max_tokens=3,
        eos_token_ids=[7],
        bad_words_token_ids=[[8, 9]],
        priority=-1,
        cache_salt="s",
    ),
    m.Abort(["r"]),
    m.Probe(5),
    m.ResetPrefixCache(),
    m.Shutdown(),
]
LOGPROBS = m.TokenLogprobs(5, -0.5, 1, [5, 6], [-0.5, float("-inf")])
FROM_ENGINE: list[m.FromEngine] = [
    m.StepOutputs(
        [
            m.TokenOutput(request_id="r", token_ids=[5], logprobs=[LOGPROBS], prompt_logprobs=[None, LOGPROBS], scheduled_at=1.5),
            m.TokenOutput(request_id="q", finish_reason="error", error_slug="generation_failed", error_message="why"),
        ],
        m.EngineStats(num_running=1, step_tokens=[2, 3]),
    ),
    m.Progress("load", 1, 2, "bytes"),
    m.EngineReady(vocab_size=1, max_model_len=2, max_num_seqs=3, num_blocks=4, block_size=5, device="cpu", dtype="float32", memory={"weights": 6}),
    m.ProbeReply(5, m.EngineStats()),
    m.EngineFailed("config_error", "why"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_to_engine(message: m.ToEngine) -> None:
    assert m.decode_to_engine(m.encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_from_engine(message: m.FromEngine) -> None:
    assert m.decode_from_engine(m.encode(message)) == message


@pytest.mark.parametrize(
    "data", [b"", b"\x00", msgspec.msgpack.encode(["add"]), msgspec.msgpack.encode(["who", 1]), msgspec.msgpack.encode({"a": 1})]
)
def test_anything_else_is_refused(data: bytes) -> None:
    decoders: list[Any] = [m.decode_to_engine, m.decode_from_engine]
    for decode in decoders:
        with pytest.raises(msgspec.DecodeError):
            decode(data)


def test_invalid_parameters_do_not_cross() -> None:
    add = TO_ENGINE[1]
    assert isinstance(add, m.AddRequest)
    add = msgspec.structs.replace(add, params=SamplingParams())
    add.params.temperature = -1.0
    with pytest.raises(Exception, match="temperature"):
        m.decode_to_engine(m.encode(add))

"""Logprobs as OpenAI's clients read them, and requests read from JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.config import HttpConfig
from trivium.errors import InvalidRequest, UnknownField
from trivium.frontends.limits import parse_json
from trivium.frontends.openai.logprobs import ChatLogprobs, CompletionLogprobs, prompt_logprobs
from trivium.frontends.openai.params import request_id_of, sampling_params
from trivium.frontends.openai.schema import ChatBody, CompletionBody
from trivium.types import Logprob, LogprobsDict


class Spelling:
    """Token n reads as the character with that code; 200 and above are single bytes."""

    async def detokenize(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))

    def token_strings(self, token_ids: list[int]) -> list[str]:
        return [chr(token_id) for token_id in token_ids]

    def token_bytes(self, token_ids: list[int]) -> list[bytes]:
        return [bytes([token_id]) for token_id in token_ids]


def entries(*items: tuple[int, float, int, str]) -> LogprobsDict:
    return {token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in items}


def test_what_is_impossible_is_a_number() -> None:
    position = entries((97, -math.inf, 5, "a"), (98, 0.0, 1, "b"))
    shape = CompletionLogprobs(1, as_ids=False).add([position], [97])
    assert shape["token_logprobs"] == [-9999.0]
    assert shape["top_logprobs"] == [{"b": 0.0, "a": -9999.0}]
    [chat] = ChatLogprobs(2, Spelling(), as_ids=False).content([position], [97])
    assert (chat["logprob"], [top["token"] for top in chat["top_logprobs"]]) == (-9999.0, ["b", "a"])
    assert prompt_logprobs([None, position]) == [
        None,
        {"97": {"logprob": -9999.0, "rank": 5, "decoded_token": "a"}, "98": {"logprob": 0.0, "rank": 1, "decoded_token": "b"}},
    ]
    msgspec.json.encode(shape)


def test_of_two_tokens_that_read_the_same_the_more_likely_is_shown() -> None:
    position = entries((200, -1.0, 1, "\ufffd"), (201, -2.0, 2, "\ufffd"))
    assert CompletionLogprobs(2, as_ids=False).add([position], [200])["top_logprobs"] == [{"\ufffd": -1.0}]
    assert CompletionLogprobs(2, as_ids=True).add([position], [200])["top_logprobs"] == [{"token_id:200": -1.0, "token_id:201": -2.0}]


def test_no_more_than_asked_for_are_shown_beside_the_chosen_one() -> None:
    position = entries((99, -5.0, 30, "c"), (97, -1.0, 1, "a"), (98, -2.0, 2, "b"))
    [chat] = ChatLogprobs(2, Spelling(), as_ids=False).content([position], [99])
    assert [top["token"] for top in chat["top_logprobs"]] == ["a", "b"]
    assert [chat["token"], chat["bytes"]] == ["c", [99]]


def test_offsets_run_on() -> None:
    logprobs = CompletionLogprobs(0, as_ids=False)
    one, two = entries((97, -1.0, 1, "ab")), entries((98, -1.0, 1, "c"))
    assert logprobs.add([None, one], [96, 97], first_text="xyz")["text_offset"] == [0, 3]
    assert logprobs.add([two], [98])["text_offset"] == [5]


def test_a_missing_field_and_an_unknown_one_are_named() -> None:
    class Body(msgspec.Struct, forbid_unknown_fields=True):
        tokens: list[int]
        inner: dict[str, int] = {}

    decoder = msgspec.json.Decoder(Body)
    cases: list[tuple[bytes, type[InvalidRequest], str | None]] = [
        (b"{}", InvalidRequest, "tokens"),
        (b'{"tokens": [1], "other": 1}', UnknownField, "other"),
        (b'{"tokens": [1, "a"]}', InvalidRequest, "tokens[1]"),
        (b'{"tokens": [1], "inner": {"a": "b"}}', InvalidRequest, "inner[...]"),
        (b"[]", InvalidRequest, None),
        (b"{", InvalidRequest, None),
    ]
    for data, error, param in cases:
        with pytest.raises(error) as raised:
            parse_json(data, decoder)
        assert raised.value.param == param
        assert "`" not in raised.value.message
        assert "$" not in raised.value.message


def test_values_of_the_request_come_before_the_models() -> None:
    body = CompletionBody(prompt="x", temperature=0.5, top_p=0.0)
    params = sampling_params(body, {"temperature": 0.9, "top_k": 40, "min_p": 0.1}, HttpConfig(), max_tokens=3, logprobs=None)
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.max_tokens) == (0.5, 1.0, 1, 0.1, 3)


def test_request_ids() -> None:
    assert request_id_of(CompletionBody(request_id="own"), "header") == "own"
    assert request_id_of(CompletionBody(), "header") == "header"
    assert len(request_id_of(CompletionBody(), None)) == 32


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


DECODERS = {body: msgspec.json.Decoder(body) for body in (CompletionBody, ChatBody)}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([CompletionBody, ChatBody]).flatmap(lambda body: st.tuples(st.just(body), st.sampled_from(body.__struct_fields__), json_values))
)
def test_any_value_of_any_field_is_taken_or_refused_by_name(case: tuple[Any, str, Any]) -> None:
    body, name, value = case
    try:
        parse_json(msgspec.json.encode({name: value}), DECODERS[body])
        param = name
    except InvalidRequest as error:
        param = error.param or ""
    assert param.split(".")[0].split("[")[0] == name

"""Wrong values of `SamplingParams` are `InvalidRequest`, whatever is wrong with them, and say which field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trivium.errors import InvalidRequest
from trivium.types import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 2.0),
        ("n", 16385),
        ("temperature", "hot"),
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("typical_p", 0.0),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("seed", -2),
        ("seed", 2**64),
        ("max_tokens", "5"),
        ("max_tokens", 0),
        ("max_tokens", 2**63),
        ("top_k", 2**64),
        ("logprobs", 2**40),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -2),
        ("prompt_logprobs", 1.0),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("bad_words", [""]),
        ("allowed_token_ids", []),
        ("logit_bias", {3: math.nan}),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.param == field
    assert isinstance(refused.value, ValueError)


def test_values_with_a_meaning_of_their_own() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(temperature=0.001).temperature == 0.01
    assert SamplingParams(temperature=1e-6).is_greedy
    assert SamplingParams(logit_bias={1: 200.0, 2: -200.0}).logit_bias == {1: 100.0, 2: -100.0}
    assert SamplingParams(max_tokens=None, min_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(max_tokens=None, min_tokens=2**64 - 1)


def test_several_greedy_choices_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="greedy"):
        SamplingParams(n=2, temperature=0.0)
    assert SamplingParams(n=2).n == 2


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequest, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop="x").stop_strings == ["x"]

"""TGI's checks as functions: its own unit tests' facts."""

from __future__ import annotations

import pytest

from trivium.config import TgiConfig
from trivium.errors import (
    DeadlineExceeded,
    EngineDead,
    GenerationFailed,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    TriviumError,
    Unauthorized,
)
from trivium.frontends.errors import HttpError
from trivium.frontends.limits import MalformedBody
from trivium.frontends.tgi.errors import render, template_error, unhealthy
from trivium.frontends.tgi.schema import Parameters
from trivium.frontends.tgi.validation import RequestLimits, check, check_lengths
from trivium.service import ModelInfo


def limits(max_total_tokens: int = 6, **config: int) -> RequestLimits:
    info = ModelInfo(name="m", root="m", created=0, max_model_len=max_total_tokens, vocab_size=10, max_logprobs=20)
    return RequestLimits.of(TgiConfig(**config), info)


def test_too_many_tokens() -> None:
    """Hello is one token; ten more don't fit into six."""
    with pytest.raises(InvalidRequest, match="must be <= 6. Given: 1 `inputs` tokens and 10 `max_new_tokens`"):
        check_lengths(1, 10, limits())
    assert check_lengths(1, 5, limits()) == 5
    assert check_lengths(5, None, limits()) is None
    with pytest.raises(InvalidRequest, match="`inputs` must have less than 5 tokens. Given: 6"):
        check_lengths(6, None, limits())


def test_only_1024_new_tokens_are_held_against_the_context() -> None:
    assert check_lengths(10, 5000, limits(2000)) == 5000
    with pytest.raises(InvalidRequest, match="and 1024 `max_new_tokens`"):
        check_lengths(1000, 5000, limits(2000))


def test_a_longest_prompt_is_never_longer_than_the_context_less_one() -> None:
    assert limits(100).max_input_tokens == 99
    assert limits(100, max_input_tokens=50).max_input_tokens == 50
    assert limits(100, max_input_tokens=5000).max_input_tokens == 99


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (Parameters(best_of=2), "you must use sampling"),
        (Parameters(top_p=1.0), "`top_p`"),
        (Parameters(top_n_tokens=6), "`top_n_tokens`"),
        (Parameters(stop=["a" * 4097]), "characters in all"),
    ],
)
def test_refused(parameters: Parameters, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check("Hello", parameters, limits(), is_stream=False)


@pytest.mark.parametrize("parameters", [Parameters(top_p=0.99), Parameters(), Parameters(best_of=1), Parameters(top_n_tokens=4)])
def test_accepted(parameters: Parameters) -> None:
    check("Hello", parameters, limits(), is_stream=True)


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (InvalidRequest("x"), 422, "validation", "Input validation error: x"),
        (MalformedBody("x"), 400, "malformed_request", "x"),
        (GenerationFailed("x"), 424, "generation", "Request failed during generation: x"),
        (EngineDead("x"), 424, "generation", "Request failed during generation: x"),
        (Overloaded("x"), 429, "overloaded", "Model is overloaded"),
        (NotReady("x"), 503, "healthcheck", "x"),
        (unhealthy(), 503, "healthcheck", "unhealthy"),
        (DeadlineExceeded("x"), 504, "timeout", "x"),
        (Unauthorized("x"), 401, "unauthorized", "x"),
        (ModelNotFound("x"), 404, "model_not_found", "x"),
        (PayloadTooLarge("x"), 413, "payload_too_large", "x"),
        (template_error("x"), 422, "template_error", "Template error: x"),
        (HttpError(405, "method_not_allowed", "x"), 405, "method_not_allowed", "x"),
        (InternalError("x"), 500, "internal_error", "x"),
    ],
)
def test_errors(error: TriviumError, status: int, kind: str, message: str) -> None:
    found, body = render(error)
    assert (found, body.error_type, body.error) == (status, kind, message)

"""What a request is refused for, in Triton's words."""

from __future__ import annotations

import pytest
from helpers_tensor_models import request, tensor

from trivium.backends.tensor_base import ModelSignature
from trivium.backends.tensor_checks import RequestChecker
from trivium.errors import InvalidRequest
from trivium.infer import DataType, InferRequest, Tensor, TensorSpec


def spec(name: str, *dims: int, **fields: bool) -> TensorSpec:
    return TensorSpec(name=name, datatype=DataType.FP32, shape=dims, **fields)  # type: ignore[arg-type]


def checker(*inputs: TensorSpec, max_batch_size: int = 64, batches: bool = True) -> RequestChecker:
    signature = ModelSignature(
        name="m", version=1, platform="p", backend="b", inputs=inputs, outputs=(spec("OUT", -1, 1),), max_batch_size=max_batch_size
    )
    return RequestChecker(signature, batches=batches)


def shaped(name: str, *shape: int, datatype: DataType = DataType.FP32) -> Tensor:
    return Tensor(name, datatype, shape, b"")


NOTE = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension"
ONE = checker(spec("IN", -1, 16))
OPTIONAL = checker(spec("A", -1, 1), spec("B", -1, 1, is_optional=True), spec("C", -1, 1, is_optional=True))


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        (
            ONE,
            request(),
            "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['IN']. "
            "Please provide all required input(s).",
        ),
        (
            ONE,
            request(shaped("IN", 1, 16), shaped("XX", 1, 16)),
            "expected 1 inputs but got 2 inputs for model 'm'. Got input(s) ['IN','XX'], but missing required input(s) [].",
        ),
        (ONE, request(shaped("XX", 1, 16)), "unexpected inference input 'XX' for model 'm'"),
        (
            ONE,
            request(shaped("IN", 1, 16, datatype=DataType.INT32), id="q"),
            "[request id: q] inference input 'IN' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (ONE, request(shaped("IN", 1, 8)), f"unexpected shape for input 'IN' for model 'm'. Expected [-1,16], got [1,8]. {NOTE}"),
        (ONE, request(shaped("IN", 16)), "Expected [-1,16], got [16]."),
        (ONE, request(shaped("IN")), "input 'IN' has no shape but model requires batch dimension for 'm'"),
        (ONE, request(shaped("IN", 65, 16)), "[request id: <id_unknown>] inference request batch-size must be <= 64 for 'm'"),
        (ONE, request(shaped("IN", 1, 16), outputs=["NOPE"]), "unexpected inference output 'NOPE' for model 'm'"),
        (checker(spec("IN", 16), max_batch_size=0), request(shaped("IN", 1, 16)), "Expected [16], got [1,16]. "),
        (
            checker(spec("A", -1, 1), spec("B", -1, 1)),
            request(shaped("A", 1, 1), shaped("B", 2, 1)),
            "input 'B' batch size does not match other inputs for 'm'",
        ),
        (checker(spec("A", -1, 1), spec("B", -1, 1)), request(shaped("A", 1, 1), shaped("A", 1, 1)), "input 'A' already exists in request"),
        (
            OPTIONAL,
            request(),
            "expected number of inputs between 1 and 3 but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) ['A'].",
        ),
        (OPTIONAL, request(shaped("B", 1, 1)), "Got input(s) ['B'], but missing required input(s) ['A']."),
        (OPTIONAL, request(shaped("A", 1, 1), shaped("D", 1, 1)), "unexpected inference input 'D' for model 'm'"),
    ],
)
def test_refused(model: RequestChecker, given: InferRequest, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        model.check(given)
    assert text in caught.value.message
    assert caught.value.message.startswith(("[request id: ", "unexpected inference", "input 'A' already"))


def test_a_shape_tensor_has_no_rows_and_is_the_same_for_a_whole_batch() -> None:
    model = checker(spec("IN", -1, 2), spec("SHAPE", 3, is_shape_tensor=True))

    def check(*sizes: float) -> tuple[int, object]:
        return model.check(request(shaped("IN", 5, 2), tensor("SHAPE", *sizes, rows=None)))

    assert check(1, 2, 3)[0] == 5
    assert check(1, 2, 3)[1] == check(1, 2, 3)[1] != check(1, 2, 4)[1]


def test_rows_and_shapes_that_are_right() -> None:
    assert ONE.check(request(shaped("IN", 3, 16)))[0] == 3
    assert checker(spec("IN", 16), max_batch_size=0).check(request(shaped("IN", 16)))[0] == 1
    assert checker(spec("IN", -1, -1, 2)).check(request(shaped("IN", 2, 0, 2)))[0] == 2
    assert ONE.check(request(tensor("IN", *range(16))))[1] is None


@pytest.mark.parametrize(
    ("model", "one", "other", "may_share"),
    [
        pytest.param(checker(spec("IN", -1, -1)), request(shaped("IN", 1, 3)), request(shaped("IN", 2, 3)), True, id="same shape"),
        pytest.param(checker(spec("IN", -1, -1)), request(shaped("IN", 1, 3)), request(shaped("IN", 1, 4)), False, id="other shape"),
        pytest.param(checker(spec("IN", -1, -1, allows_ragged=True)), request(shaped("IN", 1, 3)), request(shaped("IN", 1, 4)), True, id="ragged"),
        pytest.param(OPTIONAL, request(shaped("A", 1, 1)), request(shaped("A", 1, 1), shaped("B", 1, 1)), False, id="other optional inputs"),
        pytest.param(
            OPTIONAL, request(shaped("A", 1, 1), shaped("B", 1, 1)), request(shaped("B", 1, 1), shaped("A", 1, 1)), True, id="order of inputs"
        ),
    ],
)
def test_which_requests_may_share_a_batch(model: RequestChecker, one: InferRequest, other: InferRequest, *, may_share: bool) -> None:
    assert (model.check(one)[1] == model.check(other)[1]) == may_share

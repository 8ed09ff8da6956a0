"""Warmup: requests made up from the configuration, run before the first client's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers_tensor_models import FunctionInstance, config, double, floats, values_of

from trivium.backends.sequence_inputs import SequenceAdapter
from trivium.backends.tensor_values import count_strings, random_data, scalar_data
from trivium.backends.warmup import warm_up
from trivium.errors import GenerationFailed, ModelLoadError
from trivium.execution import Execution
from trivium.infer import ITEM_SIZES, DataType
from trivium.protocol.model_config import TYPE_FP32, TYPE_STRING, ModelConfig, ModelSequenceBatching, ModelWarmup


def sample(*, batch_size: int = 1, count: int = 0, **data: object) -> ModelWarmup:
    given = ModelWarmup.Input(**({"data_type": TYPE_FP32, "dims": [1]} | (data or {"zero_data": True})))  # type: ignore[arg-type]
    return ModelWarmup(name="w", batch_size=batch_size, count=count, inputs={"IN": given})


def warmed(*samples: ModelWarmup, **fields: object) -> ModelConfig:
    return config(model_warmup=samples, **fields)


async def test_each_sample_runs_as_often_as_it_says_on_each_instance() -> None:
    instances = [FunctionInstance(double), FunctionInstance(double)]
    await warm_up(warmed(sample(batch_size=2, count=3), sample()), instances, [], Path("/nowhere"))
    assert [instance.sizes for instance in instances] == [[2, 2, 2, 1]] * 2
    first = instances[0].batches[0][0]
    assert first.inputs[0].shape == (1, 1) and values_of(first.inputs[0]) == [0]


async def test_data_comes_from_a_file_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "in").write_bytes(floats([7]))
    instance = FunctionInstance(double)
    await warm_up(warmed(sample(input_data_file="in")), [instance], [], tmp_path)
    assert values_of(instance.batches[0][0].inputs[0]) == [7]


async def test_sequence_models_get_their_controls() -> None:
    control = ModelSequenceBatching.Control(kind=ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID, data_type=TYPE_STRING)
    batching = ModelSequenceBatching(control_input=[ModelSequenceBatching.ControlInput(name="CORRID", control=[control])])
    settings = warmed(sample(), sequence_batching=batching)
    instance = FunctionInstance(double)
    await warm_up(settings, [instance], [SequenceAdapter(settings, Path("/nowhere"))], Path("/nowhere"))
    assert {found.name: bytes(found.data) for found in instance.batches[0][0].inputs}["CORRID"] == scalar_data(DataType.BYTES, "1")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sample(batch_size=9), "has a batch_size of 9, the model takes 8"),
        (sample(dims=[-1], zero_data=True), "must give every dimension of input 'IN'"),
        (sample(input_data_file="absent"), "can't be read"),
        (sample(input_data_file="../x"), "lies outside the model's folder"),
    ],
)
async def test_samples_that_can_not_be_made(tmp_path: Path, bad: ModelWarmup, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        await warm_up(warmed(bad), [FunctionInstance(double)], [], tmp_path)


async def test_a_failing_sample_is_a_load_error() -> None:
    async def fail(batch: Sequence[Execution]) -> None:
        batch[0].fail(GenerationFailed("kaboom"))

    with pytest.raises(ModelLoadError, match="failed to run warmup sample 'w' for model 'model': kaboom"):
        await warm_up(warmed(sample()), [FunctionInstance(fail)], [], Path("/nowhere"))


@pytest.mark.parametrize("datatype", list(DataType))
def test_random_data_has_the_wire_form_of_its_type(datatype: DataType) -> None:
    data = random_data(datatype, (3, 2))
    assert len(data) == 6 * ITEM_SIZES[datatype] if datatype in ITEM_SIZES else count_strings(data) == 6
    assert data == random_data(datatype, (3, 2))


@pytest.mark.parametrize(("data", "num"), [(b"", 0), (b"\0\0\0\0", 1), (b"\1\0\0\0a\0\0\0\0", 2), (b"\5\0\0\0a", -1), (b"\1\0", -1)])
def test_count_strings(data: bytes, num: int) -> None:
    assert count_strings(data) == num

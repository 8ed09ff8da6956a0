"""What a configuration may leave out: the back end told by the files, defaults, and what a back end found in a model's own file."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_repository import write_model

from trivium.errors import InvalidRequest
from trivium.protocol.config_json import config_to_dict
from trivium.protocol.model_config import TYPE_FP32, TYPE_INT64, ModelConfig, ModelInstanceGroup
from trivium.repository.config_text import BadModelConfig
from trivium.repository.layout import ModelFolder
from trivium.repository.plan import PlanOptions, read_plan
from trivium.repository.versions import parse_version, served_versions, version_folders

IO = "input [ { name: 'I' data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] } ]\n"


def planned(tmp_path: Path, config: str | None, file: str = "", *, name: str = "m", gpus: tuple[int, ...] = ()) -> ModelConfig:
    folder = write_model(tmp_path, name, config, file=file)
    return read_plan(ModelFolder(name, tmp_path, folder), PlanOptions(gpus=gpus)).config


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (None, "model.onnx", ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (None, "model.plan", ("tensorrt", "tensorrt_plan", "model.plan")),
        (None, "model.pt", ("pytorch", "pytorch_libtorch", "model.pt")),
        (None, "model.pt2", ("pytorch", "torch_aoti", "model.pt2")),
        (None, "model.graphdef", ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        (None, "model.py", ("python", "", "model.py")),
        (None, "model.json", ("vllm", "", "model.json")),
        (None, "xgboost.json", ("fil", "", "xgboost.json")),
        (None, "model.txt", ("fil", "", "model.txt")),
        (None, "checkpoint.tl", ("fil", "", "checkpoint.tl")),
        ("platform: 'onnxruntime_onnx'", "", ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("platform: 'tensorflow_savedmodel'", "", ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("backend: 'tensorflow'", "", ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("backend: 'pytorch'", "model.pt2", ("pytorch", "torch_aoti", "model.pt2")),
        ("backend: 'pytorch' default_model_filename: 'x.pt2'", "", ("pytorch", "torch_aoti", "x.pt2")),
        ("backend: 'pytorch'", "", ("pytorch", "pytorch_libtorch", "model.pt")),
        ("backend: 'onnxruntime' default_model_filename: 'x.onnx'", "", ("onnxruntime", "onnxruntime_onnx", "x.onnx")),
        ("default_model_filename: 'model.py'", "", ("python", "", "model.py")),
        ("backend: 'fil'", "model.txt", ("fil", "", "model.txt")),
        ("backend: 'fil' parameters { key: 'model_type' value { string_value: 'xgboost_ubj' } }", "", ("fil", "", "xgboost.ubj")),
        ("backend: 'fil'", "", ("fil", "", "xgboost.model")),
        ("backend: 'llm'", "", ("llm", "", "model.json")),
    ],
)
def test_back_end_platform_and_file_follow_from_each_other(tmp_path: Path, config: str | None, file: str, expected: tuple[str, str, str]) -> None:
    found = planned(tmp_path, config, file)
    assert (found.backend, found.platform, found.default_model_filename) == expected


def test_a_folder_of_a_language_model_or_a_gguf_file_is_one(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", None, file="")
    (folder / "1" / "weights.gguf").write_text("")
    assert planned(tmp_path, None).backend == "llm"
    inner = write_model(tmp_path, "n", None, file="") / "1" / "SomeModel"
    inner.mkdir()
    (inner / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert planned(tmp_path, None, name="n").backend == "llm"


def test_a_savedmodel_is_a_folder(tmp_path: Path) -> None:
    (write_model(tmp_path, "m", None, file="") / "1" / "model.savedmodel").mkdir()
    assert planned(tmp_path, None).platform == "tensorflow_savedmodel"


def test_the_name_tells_the_back_end_when_nothing_else_does(tmp_path: Path) -> None:
    with pytest.raises(BadModelConfig, match=r"Could not determine backend for model 'm' .* 'model\.<backend_name>'"):
        planned(tmp_path, None)
    assert planned(tmp_path, None, name="m.python").backend == "python"


def test_without_a_configuration_and_without_completion_there_is_no_model(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", None)
    with pytest.raises(BadModelConfig, match="must provide model configuration"):
        read_plan(ModelFolder("m", tmp_path, folder), PlanOptions(auto_complete=False))


@pytest.mark.parametrize(
    ("group", "gpus", "expected"),
    [
        ("", (), [("m", "KIND_CPU", 2, [])]),
        ("instance_group { }", (), [("m_0", "KIND_CPU", 2, [])]),
        ("instance_group { count: 3 } instance_group { name: 'x' }", (), [("m_0", "KIND_CPU", 3, []), ("x", "KIND_CPU", 2, [])]),
        ("", (0, 1), [("m", "KIND_GPU", 1, [0, 1])]),
        ("instance_group { kind: KIND_GPU gpus: [ 1 ] count: 2 }", (0, 1), [("m_0", "KIND_GPU", 2, [1])]),
        ("instance_group { gpus: [ 5 ] }", (0, 1), [("m_0", "KIND_CPU", 2, [5])]),
        ("instance_group { kind: KIND_CPU }", (0, 1), [("m_0", "KIND_CPU", 2, [])]),
    ],
)
def test_instance_groups_get_name_kind_and_count(tmp_path: Path, group: str, gpus: tuple[int, ...], expected: list[object]) -> None:
    found = planned(tmp_path, f"backend: 'onnxruntime'\n{group}", gpus=gpus)
    groups = [(each.name, ModelInstanceGroup.Kind.Name(each.kind), each.count, list(each.gpus)) for each in found.instance_group]
    assert groups == expected


def test_defaults_are_filled_in_once_the_batch_size_is_known(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", "backend: 'python'\n" + IO + "dynamic_batching { }", file="model.py")
    plan = read_plan(ModelFolder("m", tmp_path, folder), PlanOptions())
    complete = plan.complete(plan.config, ModelConfig(max_batch_size=16))
    assert list(complete.dynamic_batching.preferred_batch_size) == [16]
    assert complete.version_policy.latest.num_versions == 1
    assert complete.optimization.input_pinned_memory.enable and complete.optimization.output_pinned_memory.enable
    assert list(plan.config.dynamic_batching.preferred_batch_size) == [], "the plan stays as it was"


def test_sequence_defaults(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", "backend: 'python' max_batch_size: 4\n" + IO + "sequence_batching { oldest { } }", file="model.py")
    plan = read_plan(ModelFolder("m", tmp_path, folder), PlanOptions())
    batching = plan.complete(plan.config, None).sequence_batching
    assert batching.max_sequence_idle_microseconds == 1_000_000 and list(batching.oldest.preferred_batch_size) == [4]


def found_in_file() -> ModelConfig:
    found = ModelConfig(max_batch_size=4)
    found.input.add(name="ids", data_type=TYPE_INT64, dims=[-1])
    found.output.add(name="logits", data_type=TYPE_FP32, dims=[2])
    found.output.add(name="hidden", data_type=TYPE_FP32, dims=[-1, 8])
    found.dynamic_batching.SetInParent()
    found.parameters["k"].string_value = "found"
    return found


def test_a_bare_model_takes_everything_from_its_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", None)
    plan = read_plan(ModelFolder("m", tmp_path, folder), PlanOptions())
    complete = config_to_dict(plan.complete(plan.config, found_in_file()))
    assert complete["max_batch_size"] == 4 and complete["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [tensor["name"] for tensor in complete["output"]] == ["logits", "hidden"] and complete["parameters"]["k"]["string_value"] == "found"


def test_what_is_configured_stays(tmp_path: Path) -> None:
    config = (
        "backend: 'onnxruntime'\nmax_batch_size: 2\noutput { name: 'logits' }\nsequence_batching { }\n"
        "parameters { key: 'k' value { string_value: 'own' } }"
    )
    folder = write_model(tmp_path, "m", config)
    plan = read_plan(ModelFolder("m", tmp_path, folder), PlanOptions())
    complete = plan.complete(plan.config, found_in_file())
    assert complete.max_batch_size == 2 and complete.WhichOneof("scheduling_choice") == "sequence_batching"
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in complete.output] == [("logits", TYPE_FP32, [2])]
    assert complete.parameters["k"].string_value == "own"


def test_a_python_model_may_add_to_what_is_configured(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", "backend: 'python'\noutput { name: 'other' data_type: TYPE_FP32 dims: 1 }", file="model.py")
    plan = read_plan(ModelFolder("m", tmp_path, folder), PlanOptions())
    found = found_in_file()
    found.model_transaction_policy.decoupled = True
    complete = plan.complete(plan.config, found)
    assert [tensor.name for tensor in complete.output] == ["other", "logits", "hidden"] and complete.model_transaction_policy.decoupled


def test_the_chosen_configuration_file_counts(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", "backend: 'python'\n" + IO, file="model.py")
    (folder / "configs").mkdir()
    (folder / "configs" / "big.pbtxt").write_text("backend: 'python'\nmax_batch_size: 64\n" + IO)
    for name, batch in (("big", 64), ("small", 0), ("", 0)):
        assert read_plan(ModelFolder("m", tmp_path, folder), PlanOptions(config_name=name)).config.max_batch_size == batch


# -- versions ---------------------------------------------------------------------------------------------------------------------


def test_versions_are_positive_numbers_without_leading_zeros(tmp_path: Path) -> None:
    for name in ("1", "2", "10", "0", "01", "-1", "1.0", "abc", "9223372036854775807", "9223372036854775808"):
        (tmp_path / name).mkdir()
    (tmp_path / "3").write_text("a file")
    assert list(version_folders(tmp_path)) == [1, 2, 10, 2**63 - 1]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 2 } }", [2, 10]),
        ("version_policy { latest { } }", [10]),
        ("version_policy { all { } }", [1, 2, 10]),
        ("version_policy { specific { versions: [ 10, 1, 3 ] } }", [1, 10]),
    ],
)
def test_the_policy_picks_versions(tmp_path: Path, policy: str, expected: list[int]) -> None:
    config = planned(tmp_path, f"backend: 'python' {policy}", "model.py")
    assert served_versions(config, [2, 1, 10]) == expected


def test_versions_of_requests() -> None:
    assert parse_version("") is None and parse_version("7") == 7
    for wrong in ("0", "x", "1.5", "9" * 30, "٣"):
        with pytest.raises(InvalidRequest, match="version should be an integral value > 0"):
            parse_version(wrong)

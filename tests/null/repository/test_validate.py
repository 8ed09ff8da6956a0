"""Every rule of a model configuration: one that breaks it, Triton's words for it, and the line it is on."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_repository import PLAIN, ensemble_of, write_model

from trivium.repository.config_text import BadModelConfig
from trivium.repository.layout import ModelFolder
from trivium.repository.plan import ModelPlan, PlanOptions, problems_of, read_plan
from trivium.repository.validate_ensemble import check_components

IO = "input [ { name: 'I' data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] } ]\n"
ONNX = f"backend: 'onnxruntime'\nmax_batch_size: 8\n{IO}"
SEQUENCE = "backend: 'python'\nmax_batch_size: 4\n" + IO.replace("{", "{{").replace("}", "}}") + "sequence_batching {{ {} }}\n"
TENSOR = "in ensemble e, ensemble tensor X: "
CONTROL = "control_input [ {{ name: 'S' control [ {{ {} }} ] }} ]"


def plan_of(tmp_path: Path, config: str, *, gpus: tuple[int, ...] = ()) -> ModelPlan:
    folder = write_model(tmp_path, "m", config)
    return read_plan(ModelFolder("m", tmp_path, folder), PlanOptions(gpus=gpus))


def problem_of(tmp_path: Path, config: str, *, gpus: tuple[int, ...] = ()) -> str:
    """The first thing wrong with `config`, by its message without the path before it; empty: nothing is."""
    try:
        plan = plan_of(tmp_path, config, gpus=gpus)
        plan.complete(plan.config, None)
    except BadModelConfig as error:
        return error.message.removeprefix("m/config.pbtxt:").removeprefix("m/config.pbtxt: ").lstrip()
    return ""


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("name: 'other' backend: 'python'", "1: unexpected directory name 'm' for model 'other', directory name must equal model name"),
        ("\nbackend: 'nosuch'", "2: unable to find backend 'nosuch' for model 'm'"),
        ("platform: 'nosuch'", "1: unexpected platform type 'nosuch' for m"),
        ("backend: 'python'\nplatform: 'onnxruntime_onnx'", "2: unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python"),
        ("backend: 'python'\nplatform: 'ensemble'", "1: Ensemble model 'm' must have platform type 'ensemble' and empty backend type"),
        ("backend: 'python'\nmax_batch_size: -1", "2: 'max_batch_size' must be non-negative value for m"),
        (ONNX + "version_policy { specific { versions: [ 7 ] } }", "5: at least one version must be available under the version policy of model 'm'"),
        # inputs and outputs
        ("backend: 'python'", "model configuration must specify at least one input for m"),
        ("backend: 'python'\ninput { data_type: TYPE_FP32 dims: 1 }", "2: model input must specify 'name' for m"),
        (
            "backend: 'python'\ninput { name: 'I' dims: 1 }\noutput { name: 'O' data_type: TYPE_FP32 dims: 1 }",
            "2: model input 'I' must specify 'data_type' for m",
        ),
        (
            "backend: 'python'\ninput { name: 'I' data_type: TYPE_FP32 }\noutput { name: 'O' data_type: TYPE_FP32 dims: 1 }",
            "2: model input 'I' must specify 'dims' for m",
        ),
        (
            ONNX.replace("dims: [ 1 ]", "dims: [ 0 ]", 1),
            "3: model input 'I' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (ONNX.replace("dims: [ 1 ]", "dims: [ -2 ]"), "3: model input 'I' dimension must be integer >= 1, or -1"),
        (ONNX + "input { name: 'I' data_type: TYPE_FP32 dims: 1 }", "5: model input 'I' is specified twice for m"),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 4 ] reshape { shape: [ 0 ] }", 1), "3: model input 'I' reshape dimensions must be integer >= 1, or -1"),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 4 ] reshape { shape: [ 3 ] }", 1), "3: model input 'I' has different size for dims and reshape for m"),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }", 1), ""),
        (
            ONNX.replace("dims: [ 1 ]", "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 4, -1, 2, 6 ] }", 1),
            "3: model input 'I' has different size for dims and reshape",
        ),
        (
            ONNX.replace("dims: [ 1 ]", "dims: [ -1, -1 ] reshape { shape: [ -1 ] }", 1),
            "3: model input 'I' has different number of variable-size dimensions for dims and reshape",
        ),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 4 ] reshape { shape: [ -1 ] }", 1), "3: model input 'I' has different size for dims and reshape"),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 1 ] reshape { }", 1), ""),
        (ONNX.replace("dims: [ 1 ]", "dims: [ 2 ] reshape { }", 1), "3: model input 'I' has different size for dims and reshape"),
        (
            ONNX.replace("dims: [ 1 ]", "dims: [ 1 ] reshape { }", 1).replace("max_batch_size: 8", ""),
            "3: model input 'I' cannot have empty reshape for non-batching model",
        ),
        (ONNX.replace("dims: [ 1 ]", "format: FORMAT_NCHW dims: [ 1 ]", 1), "3: model input NHWC/NCHW require 3 dims for m"),
        (ONNX.replace("dims: [ 1 ]", "is_shape_tensor: true dims: [ 1 ]", 1), "3: shape tensors are only supported for TensorRT platform for m"),
        (
            ONNX.replace("dims: [ 1 ]", "is_non_linear_format_io: true dims: [ 1 ]", 1),
            "3: Non-linear IO format is only supported for the TensorRT platform",
        ),
        (
            ONNX.replace("onnxruntime", "tensorrt").replace("dims: [ 1 ]", "is_non_linear_format_io: true dims: [ 1 ]", 1),
            "3: Non-linear IO format input requires 3 dims",
        ),
        (
            ONNX + "batch_input { kind: BATCH_ITEM_SHAPE target_name: 'S' data_type: TYPE_FP32 }",
            "5: batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
        ),
        (
            ONNX + "batch_input { target_name: 'S' data_type: TYPE_FP16 source_input: 'I' }",
            "5: batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
        ),
        (ONNX + "batch_input { target_name: 'S' data_type: TYPE_FP32 source_input: 'X' }", "5: unknown source input name 'X' for m"),
        (ONNX + "batch_output { target_name: 'O' }", "5: batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m"),
        (ONNX + "batch_output { target_name: 'X' source_input: 'I' }", "5: unknown target output name 'X' for m"),
        (ONNX + "batch_output { target_name: ['O', 'O'] source_input: 'I' }", "5: target output name 'O' can only be specified once for m"),
        # dynamic batching
        (ONNX + "dynamic_batching {\n preferred_batch_size: [ 16 ] }", "6: dynamic batching preferred size must be <= max batch size for m"),
        (ONNX + "dynamic_batching {\n preferred_batch_size: [ 0 ] }", "6: dynamic batching preferred size must be positive for m"),
        (ONNX + "dynamic_batching { priority_levels: 2 }", "5: default priority level must be in range [1, 2] for m"),
        (ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "5: default priority level must be in range [1, 2] for m"),
        (
            ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
            "5: priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            ONNX + "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }",
            "5: Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            ONNX + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "5: Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        # response cache
        (
            SEQUENCE.format("direct { }") + "response_cache { enable: true }",
            "6: Response Cache does not currently support model m with sequence batching scheduler",
        ),
        (
            ONNX + "model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }",
            "6: Response Cache does not currently support model m with 'decoupled'",
        ),
        # sequences
        (SEQUENCE.format("oldest { preferred_batch_size: 0 }"), "5: sequence batching preferred batch size must be positive for m"),
        (SEQUENCE.format("oldest { preferred_batch_size: 5 }"), "5: sequence batching preferred batch size must be <= max batch size for m"),
        (
            SEQUENCE.format("direct { minimum_slot_utilization: 1.5 }"),
            "5: sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
        (
            SEQUENCE.format("control_input [ { control [ { fp32_false_true: [ 0, 1 ] } ] } ]"),
            "5: sequence batching control tensor must have a name for m",
        ),
        (SEQUENCE.format(CONTROL.format("kind: CONTROL_SEQUENCE_START")), "5: sequence batching must specify either 'int32_false_true', "),
        (
            SEQUENCE.format(CONTROL.format("fp32_false_true: [ 0, 1 ] int32_false_true: [ 0, 1 ]")),
            "5: sequence batching specifies more than one from",
        ),
        (
            SEQUENCE.format(CONTROL.format("int32_false_true: [ 0 ]")),
            "5: sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START",
        ),
        (
            SEQUENCE.format(CONTROL.format("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32")),
            "5: unexpected data type for control CONTROL_SEQUENCE_CORRID",
        ),
        (
            SEQUENCE.format(CONTROL.format("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 bool_false_true: [ true ]")),
            "5: sequence batching must not specify either",
        ),
        (
            SEQUENCE.format(CONTROL.format("int32_false_true: [ 0, 1 ]") + CONTROL.format("int32_false_true: [ 0, 1 ]")),
            "5: sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            SEQUENCE.format("state [ { input_name: 'a' data_type: TYPE_FP32 dims: 1 } ]"),
            "5: sequence batching state must specify 'input_name' and 'output_name'",
        ),
        (
            SEQUENCE.format("state [ { input_name: 'a' output_name: 'b' dims: 1 } ]"),
            "5: sequence batching state 'a' must specify 'data_type' and 'dims'",
        ),
        # instance groups
        (ONNX + "instance_group { kind: KIND_CPU gpus: 0 }", "5: instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
        (
            ONNX + "instance_group { name: 'g' kind: KIND_MODEL gpus: 0 }",
            "5: instance group g of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (ONNX + "instance_group { kind: KIND_GPU }", "5: instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        (ONNX + "instance_group { profile: '0' }", "5: instance group m_0 of model m and platform onnxruntime_onnxspecifies profile field"),
        (
            ONNX.replace("onnxruntime", "tensorrt") + "instance_group { profile: 'x' }",
            "5: instance group m_0 of model m and platform tensorrt_plan specifies invalid profile x",
        ),
        (ONNX + "instance_group { count: 100000 }", "5: model m has more than 1024 instances"),
        # metrics
        (ONNX + "model_metrics { metric_control { } }", "5: metric control must specify 'metric_identifier'"),
        (ONNX + "model_metrics { metric_control { metric_identifier { } } }", "5: metric identifier must specify non-empty 'family'"),
        (ONNX + "model_metrics { metric_control { metric_identifier { family: 'f' } } }", "5: metric control must specify 'histogram_options'"),
        (
            ONNX + "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { } } }",
            "5: histogram options must specify non-empty 'buckets'",
        ),
        # what can't be honoured
        (ONNX + "runtime: 'x.so'", "5: runtime is not supported for m"),
        (ONNX + "model_repository_agents { agents { name: 'checksum' } }", "5: model_repository_agents is not supported for m"),
        (ONNX + "model_operations { op_library_filename: 'x.so' }", "5: model_operations.op_library_filename is not supported for m"),
        (ONNX + "instance_group { host_policy: 'p' }", "5: instance_group.host_policy is not supported for m"),
        (ONNX + "instance_group { secondary_devices { } }", "5: instance_group.secondary_devices is not supported for m"),
        (ensemble_of("a").replace("model_version: -1", "model_namespace: 'n'"), "6: ensemble_scheduling.step.model_namespace is not supported for m"),
        ("backend: 'vllm'\n" + IO + "instance_group { count: 2 }", "4: instance_group.count is not supported for m"),
        ("backend: 'llm'\n" + IO + "response_cache { enable: true }", "4: response_cache is not supported for m"),
        ("backend: 'llm'\n" + IO + "sequence_batching { }", "4: sequence_batching is not supported for m"),
        # files
        (ONNX + "default_model_filename: '../../secret'", "5: file name '../../secret' leaves the folder of model m"),
        (ONNX.replace("name: 'O'", "name: 'O' label_filename: '/etc/passwd'"), "4: file name '/etc/passwd' leaves the folder of model m"),
        # ensembles
        ("platform: 'ensemble'", "1: ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        (ONNX + "ensemble_scheduling { }", "5: ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"),
        (ensemble_of("a") + "instance_group { }", "7: instance group should not be specified for ensemble 'm'"),
        (ensemble_of("a") + "optimization { }", "7: optimization should not be specified for ensemble 'm'"),
        (ensemble_of("a") + "model_warmup { }", "7: model_warmup can not be specified for ensemble 'm'"),
        ("platform: 'ensemble'\nensemble_scheduling { }", "2: must specify 'step' for ensemble 'm'"),
        (ensemble_of("").replace('model_name: ""', ""), "6: must specify 'model_name' in step 0 of ensemble 'm'"),
        (
            ensemble_of("a", "b").replace('value: "T1"', 'value: "T2"', 1),
            "5: output 'Y' for ensemble 'm' is not written: at least one of its depending tensors, 'T1', is not connected",
        ),
        (ensemble_of("a").replace('name: "X"', 'name: "Z"'), "4: ensemble input 'Z' for ensemble m' is not used"),
        (
            ensemble_of("a").replace('value: "Y"', 'value: "X"'),
            "6: ensemble tensor 'X' can appear in an output map only once for ensemble 'm' step 0",
        ),
    ],
)
def test_each_rule_is_told_in_tritons_words_with_its_line(tmp_path: Path, config: str, problem: str) -> None:
    found = problem_of(tmp_path, config)
    assert found.startswith(problem) and bool(found) == bool(problem), found


def test_gpus_are_those_of_the_machine(tmp_path: Path) -> None:
    assert problem_of(tmp_path, ONNX + "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }", gpus=(0, 1)) == ""
    assert problem_of(tmp_path, ONNX + "instance_group { kind: KIND_GPU gpus: [ 4 ] }", gpus=(0, 1)).endswith("unsupported gpu id 4. GPUs are: 0, 1")


def test_batching_of_language_models_is_accepted_as_it_stands(tmp_path: Path) -> None:
    config = "backend: 'vllm'\nmax_batch_size: 4\n" + IO.replace("FP32", "STRING") + "dynamic_batching { preferred_batch_size: [ 16 ] }"
    assert problem_of(tmp_path, config) == ""


def test_every_problem_of_a_model_is_listed(tmp_path: Path) -> None:
    folder = write_model(
        tmp_path,
        "m",
        ONNX + "instance_group { kind: KIND_CPU gpus: 0 }\nresponse_cache { enable: true }\nmodel_transaction_policy { decoupled: true }",
    )
    problems = problems_of(ModelFolder("m", tmp_path, folder), PlanOptions())
    assert [problem.split(": ")[0].rpartition(":")[2] for problem in problems] == ["5", "6"]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (PLAIN, ""),
        (
            PLAIN.replace("TYPE_FP32 dims: [ 1 ]", "TYPE_INT32 dims: [ 1 ]"),
            f"{TENSOR}inconsistent data type: TYPE_FP32 is inferred from ensemble 'e' while TYPE_INT32 is inferred from model m",
        ),
        (
            PLAIN.replace("dims: [ 1 ]", "dims: [ 3 ]"),
            f"{TENSOR}inconsistent shape: [-1,1] is inferred from ensemble 'e' while [-1,3] is inferred from model m",
        ),
        (PLAIN.replace("dims: [ 1 ]", "dims: [ -1 ]"), ""),
        (
            PLAIN.replace("max_batch_size: 8", "max_batch_size: 2"),
            "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to be 2",
        ),
        (PLAIN.replace('"IN"', '"OTHER"'), "in ensemble e, ensemble tensor X is mapping to non-existing input IN in model m"),
        (
            PLAIN.replace("output [", "input [ { name: 'MORE' data_type: TYPE_FP32 dims: [ 1 ] } ] output ["),
            "in ensemble e, input MORE in model m is not mapped to any ensemble tensors",
        ),
        (PLAIN.replace("output [", "input [ { name: 'MORE' optional: true data_type: TYPE_FP32 dims: [ 1 ] } ] output ["), ""),
    ],
)
def test_an_ensembles_tensors_are_those_of_its_models(tmp_path: Path, part: str, problem: str) -> None:
    folder = write_model(tmp_path, "e", ensemble_of("m"), versions=(), file="")
    ensemble = read_plan(ModelFolder("e", tmp_path, folder), PlanOptions())
    found = [message for message, _ in check_components(ensemble.config, {"m": plan_of(tmp_path, part).config})]
    assert (found[0] if found else "") == problem

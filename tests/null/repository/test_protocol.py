"""Our protobuf messages are those of the formats, field by field; their JSON is Triton's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from trivium.errors import InvalidRequest
from trivium.infer import DataType
from trivium.protocol import health, kserve, model_config
from trivium.protocol.config_json import config_from_json, config_to_dict, config_to_json
from trivium.protocol.datatypes import config_datatype, wire_datatype
from trivium.protocol.descriptors import service_methods
from trivium.protocol.model_config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]


def describe_enum(enum: EnumDescriptor) -> object:
    return {value.name: value.number for value in enum.values}


def describe(message: Descriptor) -> object:
    """Everything that decides the bytes and the text of a message."""
    fields = {}
    for field in message.fields:
        oneof = field.containing_oneof.name if field.containing_oneof is not None else ""
        kind = field.message_type or field.enum_type
        fields[field.name] = (field.number, field.type, field.is_repeated, oneof, kind.full_name if kind is not None else "")
    return {
        "fields": fields,
        "order": [field.name for field in message.fields],
        "nested": {nested.name: describe(nested) for nested in message.nested_types},
        "enums": {enum.name: describe_enum(enum) for enum in message.enum_types},
    }


def descriptor_of(message: type) -> FileDescriptor:
    return message.DESCRIPTOR.file


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(descriptor_of(ModelConfig), model_config_pb2.DESCRIPTOR), (descriptor_of(kserve.ModelInferRequest), service_pb2.DESCRIPTOR)],
    ids=["model_config", "grpc_service"],
)
def test_messages_are_tritonclients_field_by_field(ours: FileDescriptor, theirs: FileDescriptor) -> None:
    assert ours.package == theirs.package
    assert sorted(ours.message_types_by_name) == sorted(theirs.message_types_by_name)
    for name, message in theirs.message_types_by_name.items():
        assert describe(ours.message_types_by_name[name]) == describe(message), name
    for name, enum in theirs.enum_types_by_name.items():
        assert describe_enum(ours.enum_types_by_name[name]) == describe_enum(enum)


def test_the_service_is_tritonclients() -> None:
    methods = service_methods("inference.GRPCInferenceService")
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    found = {
        name: (m.path, m.request.DESCRIPTOR.full_name, m.response.DESCRIPTOR.full_name, m.streams_requests, m.streams_responses)
        for name, m in methods.items()
    }
    assert found == {
        m.name: (f"/{theirs.full_name}/{m.name}", m.input_type.full_name, m.output_type.full_name, m.client_streaming, m.server_streaming)
        for m in theirs.methods
    }
    assert methods["ModelInfer"].request is kserve.ModelInferRequest
    assert service_methods("grpc.health.v1.Health")["Check"].request is health.HealthCheckRequest


def test_both_live_in_one_process_and_understand_each_other() -> None:
    theirs = model_config_pb2.ModelConfig(name="m", max_batch_size=4)
    theirs.dynamic_batching.priority_queue_policy[2].max_queue_size = 7
    ours = ModelConfig.FromString(theirs.SerializeToString())
    assert ours.dynamic_batching.priority_queue_policy[2].max_queue_size == 7
    assert type(ours) is not type(theirs)
    assert model_config_pb2.ModelConfig.FromString(ours.SerializeToString()) == theirs


def test_the_committed_stubs_are_those_of_the_descriptors() -> None:
    spec = importlib.util.spec_from_file_location("generate_protocol", ROOT / "scripts" / "generate_protocol.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.stubs((module.PROTOCOL / "descriptors.binpb").read_bytes()).items():
        committed = (module.PROTOCOL / f"{name}.pyi").read_text()
        declared = [line.split("(")[0].strip() for line in text.splitlines() if line.strip().startswith(("class ", "def "))]
        assert [line.split("(")[0].strip() for line in committed.splitlines() if line.strip().startswith(("class ", "def "))] == declared, name


def test_protos_and_descriptors_agree() -> None:
    pytest.importorskip("grpc_tools")
    code = (
        "import sys; sys.path.insert(0, 'scripts'); from generate_protocol import *; "
        "sys.exit((PROTOCOL / 'descriptors.binpb').read_bytes() != compile_descriptors())"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT).returncode == 0


FULL = """{"name":"m","platform":"","backend":"python","runtime":"","version_policy":{"specific":{"versions":[1,3]}},"max_batch_size":4,
"input":[{"name":"A","data_type":"TYPE_STRING","format":"FORMAT_NHWC","dims":[-1,3,9007199254740993],"reshape":{"shape":[1]},"is_shape_tensor":false,
"allow_ragged_batch":true,"optional":true,"is_non_linear_format_io":false}],"output":[],"batch_input":[],"batch_output":[],
"sequence_batching":{"direct":{"max_queue_delay_microseconds":18446744073709551615,"minimum_slot_utilization":0.1},
"max_sequence_idle_microseconds":5,"control_input":[],"state":[],"iterative_sequence":false},"instance_group":[],
"default_model_filename":"","cc_model_filenames":{},"metric_tags":{"b":"2","c":"3","a":"1"},
"parameters":{"k":{"string_value":"v"}},"model_warmup":[{"name":"w","batch_size":1,"inputs":{"A":{"data_type":"TYPE_FP32","dims":[1],"zero_data":true}},
"count":0}],"model_transaction_policy":{"decoupled":false},
"model_metrics":{"metric_control":[{"metric_identifier":{"family":"f"},"histogram_options":{"buckets":[0.1,1,2.5]}}]}}"""


def test_json_is_as_triton_prints_it() -> None:
    config = config_from_json(FULL)
    expected = json.loads(FULL)
    found = json.loads(config_to_json(config))
    assert found == expected
    assert '"buckets":[0.1,1,2.5]' in config_to_json(config)
    assert list(found) == list(expected), "fields in the order of their declaration"
    assert list(found["metric_tags"]) == ["a", "b", "c"]
    assert config_from_json(config_to_json(config)) == config


def test_recorded_configurations_come_back_letter_for_letter(tmp_path: Path) -> None:
    recorded = (
        '{"name":"identity_dyn","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":64,'
        '"input":[{"name":"INPUT0","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,"allow_ragged_batch":false,'
        '"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[16],"label_filename":"",'
        '"is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT",'
        '"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
        '"dynamic_batching":{"preferred_batch_size":[64],"max_queue_delay_microseconds":100,"preserve_ordering":false,"priority_levels":0,'
        '"default_priority_level":0,"priority_queue_policy":{}},"instance_group":[{"name":"identity_dyn_0","kind":"KIND_CPU","count":1,"gpus":[],'
        '"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.py","cc_model_filenames":{},'
        '"metric_tags":{},"parameters":{},"model_warmup":[]}'
    )
    assert config_to_json(config_from_json(recorded)) == recorded


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{bad", "Expecting property name"),
        ("[]", "must be a JSON object"),
        ('{"zzz": 1}', "zzz"),
        ('{"max_batch_size": "many"}', "max_batch_size"),
        ('{"input": [{"data_type": "TYPE_NOPE"}]}', "TYPE_NOPE"),
        ("[" * 100_000, ""),
    ],
)
def test_json_that_is_no_configuration_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match="the model configuration is not valid") as caught:
        config_from_json(text)
    assert reason in caught.value.message


def test_an_unknown_enum_value_is_printed_as_its_number() -> None:
    config = ModelConfig()
    config.input.add(name="A", data_type=99)
    assert config_to_dict(config)["input"][0]["data_type"] == 99


def test_a_float_that_needs_all_its_digits_gets_them() -> None:
    config = ModelConfig()
    config.sequence_batching.direct.minimum_slot_utilization = 1 / 3
    assert config_to_dict(config)["sequence_batching"]["direct"]["minimum_slot_utilization"] == pytest.approx(1 / 3, abs=1e-8)


def test_element_types_map_both_ways() -> None:
    assert [wire_datatype(config_datatype(datatype)) for datatype in DataType] == list(DataType)
    assert wire_datatype(model_config.TYPE_STRING) is DataType.BYTES and config_datatype(DataType.BF16) == model_config.TYPE_BF16
    assert len(model_config.DataType.values()) == len(DataType) + 1

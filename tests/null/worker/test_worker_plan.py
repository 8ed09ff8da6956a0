"""Which processes a model gets, and what its parameters say of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from trivium.client.worker_plan import execution_limit_s, interpreter_of, plan_processes
from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelConfig


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig(name="m"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('backend: "python"', [[("m_0", "CPU", 0)]]),
        ('backend: "python" instance_group { count: 2 kind: KIND_CPU }', [[("m_0_0", "CPU", 0)], [("m_0_1", "CPU", 0)]]),
        ('backend: "onnxruntime" instance_group { name: "g" count: 2 kind: KIND_CPU }', [[("g_0", "CPU", 0), ("g_1", "CPU", 0)]]),
        ('backend: "fil" instance_group { name: "g" kind: KIND_GPU gpus: [0, 2] }', [[("g_0_gpu0", "GPU", 0), ("g_0_gpu2", "GPU", 2)]]),
        ('backend: "pytorch" instance_group { name: "g" kind: KIND_GPU gpus: 1 count: 2 }', [[("g_0", "GPU", 1), ("g_1", "GPU", 1)]]),
        ('backend: "python" instance_group { kind: KIND_MODEL }', [[("m_0_0", "MODEL", 0)]]),
        ('backend: "fil" instance_group { name: "a" kind: KIND_CPU } instance_group { name: "b" passive: true }', [[("a_0", "CPU", 0)]]),
    ],
)
def test_processes_and_their_instances(text: str, expected: list[list[tuple[str, str, int]]]) -> None:
    assert [[(plan.name, plan.kind, plan.device) for plan in plans] for plans in plan_processes(config(text))] == expected


def test_too_many_instances_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="asks for 257 instances"):
        plan_processes(config("instance_group { count: 257 }"))


def parameter(name: str, value: str) -> ModelConfig:
    return config(f'backend: "python" parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}')


def test_limits_of_an_execution() -> None:
    assert execution_limit_s(config("")) == 600
    assert execution_limit_s(parameter("execution_timeout_s", "2.5")) == 2.5
    assert execution_limit_s(parameter("execution_timeout_s", "0")) == 0
    for wrong in ("-1", "nan", "inf", "soon", ""):
        with pytest.raises(ModelLoadError, match="must be a number of seconds"):
            execution_limit_s(parameter("execution_timeout_s", wrong))


def test_environments(tmp_path: Path) -> None:
    assert interpreter_of(config('backend: "python"'), tmp_path) is None
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").write_text("")
    assert interpreter_of(parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env"), tmp_path) == tmp_path / "env" / "bin" / "python"
    with pytest.raises(ModelLoadError, match="no Python environment"):
        interpreter_of(parameter("EXECUTION_ENV_PATH", "/nowhere"), tmp_path)

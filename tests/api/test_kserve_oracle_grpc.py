"""55 gRPC exchanges recorded from a real tritonserver 2.51.0: equal, or one of the improvements named here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers_grpc_replay import replay
from helpers_kserve import KserveProcess

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_triton" / "grpc.json").read_text())

INVALID = "INVALID_ARGUMENT"
IMPROVEMENTS = {
    "infer_baddtype": (INVALID, "invalid datatype 'FLOAT' for input 'INPUT0' for model 'identity'"),
    "infer_extra_raw": (INVALID, "unexpected additional input data for model 'identity': 2 raw_input_contents for 1 inputs"),
    "load_unknown": ("NOT_FOUND", "failed to load 'nope', failed to poll from model repository: "),
    "shm_reg_bad": (INVALID, "Unable to open shared memory region: '/nope'"),
}
"""The code of a client's mistake where Triton says INTERNAL, or takes what it doesn't understand; the wrong word in the message."""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    process = KserveProcess(only_recorded=True)
    try:
        return {answer["name"]: answer for answer in replay(process.grpc)}
    finally:
        assert process.stop() == 0


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["name"])
def test_answer_is_tritons_or_a_named_improvement(recorded: dict[str, Any], answers: dict[str, dict[str, Any]]) -> None:
    name = recorded["name"]
    answer = answers[name]
    if name in IMPROVEMENTS:
        code, text = IMPROVEMENTS[name]
        assert answer["code"] == code
        assert answer["details"].startswith(text)
    elif name == "meta":
        assert answer["resp"].startswith('name: "trivium" version: "')
        assert answer["resp"].partition(" extensions")[2] == recorded["resp"].partition(" extensions")[2]
    elif name in ("trace", "log"):
        # Maps have no order.
        assert sorted(answer["resp"].split("settings")) == sorted(recorded["resp"].split("settings"))
    else:
        assert answer == recorded

"""What doctor and show make of the facts they find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trivium.arch import ModelSpec
from trivium.cli import doctor
from trivium.cli.main import main
from trivium.cli.show import describe, render
from trivium.sources import ModelFiles

DEVICE = {
    "torch": "2.13.0+cpu",
    "cuda": None,
    "gpus": [],
    "cpu_capability": "AVX512",
    "threads": 2,
    "cpu_fast_paths": {"ops": ["rms_norm"], "attention": "cpu"},
    "cpu_extension": {"available": True},
    "cuda_fast_paths": None,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    facts = dict(DEVICE)
    monkeypatch.setattr(doctor, "_torch_report", lambda: facts)
    return facts


def test_a_healthy_machine_is_told_so(device: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "2.13.0+cpu, CPU AVX512, 2 thread(s)" in out
    assert "attention cpu; fast ops: rms_norm" in out
    assert out.endswith("No problem found.\n")


def test_without_a_compiler_that_is_the_problem(device: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem: no C++ compiler" in out
    assert "safetensors" not in out
    assert "available: yes" in out


def test_a_broken_torch_is_a_problem_and_exit_code_1(device: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    device.clear()
    device["error"] = "ImportError: libtorch"
    assert main(["doctor"]) == 1
    assert "problem: torch does not work: ImportError: libtorch" in capsys.readouterr().out


def test_gpus_and_broken_fast_paths_are_shown(device: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    device["gpus"] = [{"name": "H200", "memory_bytes": 141 << 30, "capability": "9.0"}]
    device["cuda_fast_paths"] = {"error": "OSError: no library"}
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "H200, 141.0 GiB, capability 9.0" in out
    assert "OSError: no library" in out


def test_doctor_shows_no_secret(device: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("TRIVIUM_API_KEY", "sk_very_secret")
    for args in (["doctor"], ["doctor", "--json"]):
        main(args)
        out = capsys.readouterr().out
        assert "very_secret" not in out
        assert "HF_TOKEN" in out
        assert "TRIVIUM_API_KEY" in out


def test_a_process_that_fails_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    assert doctor._torch_report() == {"error": "exit code 1"}


def test_show_counts_what_a_model_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1024)
    assert main(["show", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["layers"], facts["context_length"], facts["weight_bytes"]) == (2, 512, 1024)
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, width, bytes
    assert facts["kv_bytes_full_context"] == 512 * facts["kv_bytes_per_token"]
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "512 tokens" in out
    assert "experts" not in out
    assert f"parameters     {facts['parameters']:,}\n" in out
    assert f"{facts['loaded_bytes'] / 1024:.1f} KiB in memory in 16 bit" in out


def test_show_refuses_an_architecture_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["NoSuchModel"]}))
    assert main(["show", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "NoSuchModel" in err
    assert "LlamaForCausalLM" in err


def test_sampling_defaults_are_shown() -> None:
    defaults = {"temperature": 0.6, "eos_token_id": [1, 2], "transformers_version": "4.57"}
    files = ModelFiles(name="m", kind="folder", path=Path("m"), config=LLAMA, generation_config=defaults)
    assert 'sampling       {"temperature": 0.6}' in render(describe(files, ModelSpec.from_config(LLAMA)))

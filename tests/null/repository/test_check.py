"""Broken repositories: each fault is told with its place, and nothing else is held back by it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers_repository import PLAIN, StubLoader, ensemble_of, make_repository, states, write_onnx

from trivium.cli.main import main
from trivium.repository.check import check_repository
from trivium.repository.plan import PlanOptions


def break_dims(path: Path) -> str:
    write_onnx(path, "bad", PLAIN.replace("dims: [ 1 ]", "dims: [ 0 ]"))
    return "bad/config.pbtxt:4: model input 'IN' dimension must be integer >= 1"


def break_syntax(path: Path) -> str:
    write_onnx(path, "bad", 'backend: "python" max_batch_size: x\n')
    return "bad/config.pbtxt:1:35: "


def break_field(path: Path) -> str:
    write_onnx(path, "bad", PLAIN + "\nmax_batchsize: 3\n")
    return 'bad/config.pbtxt:7:1: message type "ModelConfig" has no field named "max_batchsize"'


def break_name(path: Path) -> str:
    write_onnx(path, "bad", 'name: "other"' + PLAIN)
    return "bad/config.pbtxt:1: unexpected directory name 'bad' for model 'other'"


def break_back_end(path: Path) -> str:
    write_onnx(path, "bad", 'backend: "nosuch"\n')
    return "bad/config.pbtxt:1: unable to find backend 'nosuch' for model 'bad'"


def break_versions(path: Path) -> str:
    write_onnx(path, "bad", versions=())
    return "bad/config.pbtxt: at least one version must be available under the version policy of model 'bad'"


def break_preferred(path: Path) -> str:
    write_onnx(path, "bad", PLAIN + "dynamic_batching { preferred_batch_size: [ 16 ] }")
    return "bad/config.pbtxt:6: dynamic batching preferred size must be <= max batch size for bad"


def break_circle(path: Path) -> str:
    link = ensemble_of("bad").replace('key: "IN"', 'key: "X"').replace('key: "OUT"', 'key: "Y"')
    write_onnx(path, "bad", link, versions=(), file="")
    return "bad/config.pbtxt:6: circular dependency between ensembles: bad -> bad"


def break_part(path: Path) -> str:
    write_onnx(path, "bad", ensemble_of("nowhere"), versions=(), file="")
    return "depends on 'nowhere'"


def break_part_shape(path: Path) -> str:
    write_onnx(path, "bad", ensemble_of("good").replace("dims: [ 4 ]", "dims: [ 5 ]"), versions=(), file="")
    return "bad/config.pbtxt:6: in ensemble bad, ensemble tensor Y: inconsistent shape: [-1,5] is inferred from ensemble 'bad' while [-1,4]"


def break_file_name(path: Path) -> str:
    write_onnx(path, "bad", PLAIN + 'default_model_filename: "../../../etc/passwd"')
    return "bad/config.pbtxt:6: file name '../../../etc/passwd' leaves the folder of model bad"


def break_encoding(path: Path) -> str:
    (write_onnx(path, "bad") / "config.pbtxt").write_bytes(b'\xffname: "bad"')
    return "bad/config.pbtxt: not UTF-8 at byte 0"


def break_type(path: Path) -> str:
    (write_onnx(path, "bad", None) / "config.pbtxt").mkdir()
    return "bad/config.pbtxt: Is a directory"


def break_no_version(path: Path) -> str:
    (path / "bad").mkdir()
    return "at least one version must be available under the version policy of model 'bad'"


def break_misplaced_file(path: Path) -> str:
    (path / "bad").mkdir()
    (path / "bad" / "model.onnx").write_text("x")
    return "at least one version must be available under the version policy of model 'bad'; model.onnx belongs in bad/1"


def break_misplaced_model(path: Path) -> str:
    (path / "bad").mkdir()
    (path / "bad" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return "; the model belongs in bad/1"


def break_empty_folder(path: Path) -> str:
    (path / "bad").mkdir()
    return "; there is no folder bad/1, nor one of another whole number"


def break_policy(path: Path) -> str:
    write_onnx(path, "bad", PLAIN + "version_policy { specific { versions: [ 7 ] } }", versions=(1, 2))
    return "bad/config.pbtxt:6: at least one version must be available under the version policy of model 'bad'; there are 1, 2"


def break_empty_version(path: Path) -> str:
    write_onnx(path, "bad", None, file="")
    return "of the form 'model.<backend_name>'. bad/1 has none of model.savedmodel, model.graphdef, model.plan, model.onnx, "


def break_back_end_missing(path: Path) -> str:
    write_onnx(path, "bad", None, file="")
    return "Could not determine backend for model 'bad'"


EMPTY_ZIP = b"PK\x05\x06" + bytes(18)

BREAKS = [value for name, value in list(globals().items()) if name.startswith("break_")]


@pytest.mark.parametrize("break_it", BREAKS, ids=[value.__name__.removeprefix("break_") for value in BREAKS])
async def test_a_broken_model_says_where_and_the_rest_is_served(tmp_path: Path, break_it) -> None:
    write_onnx(tmp_path, "good")
    expected = break_it(tmp_path)
    checks = {found.name: found for found in check_repository([tmp_path], PlanOptions())}
    assert expected in "\n".join(checks["bad"].problems), checks["bad"].problems
    assert checks["good"].problems == () and checks["good"].versions == (1,)
    repository = make_repository(tmp_path, StubLoader(), control_mode="none")
    await repository.start()
    assert repository.is_ready("good") and not repository.is_ready("bad")
    found = "\n".join(text for name, text in states(repository).items() if name.startswith("bad"))
    assert expected in found and found.startswith("UNAVAILABLE")
    await repository.close()


@pytest.mark.parametrize(
    ("config", "file", "problem"),
    [
        (PLAIN, "", "bad/1: there is no model.onnx in it"),
        (PLAIN.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"'), "model.onnx", "bad/config.pbtxt:5: there is no label file"),
        (
            PLAIN + 'model_warmup { name: "w" inputs { key: "IN" value { data_type: TYPE_FP32 dims: 1 input_data_file: "x.raw" } } }',
            "model.onnx",
            "bad/config.pbtxt:6: there is no warmup file",
        ),
    ],
)
def test_a_check_looks_for_files(tmp_path: Path, config: str, file: str, problem: str) -> None:
    write_onnx(tmp_path, "bad", config, file=file)
    (found,) = check_repository([tmp_path], PlanOptions())
    assert len(found.problems) == 1 and problem in found.problems[0]


def test_things_that_are_no_models_are_left_alone(tmp_path: Path) -> None:
    write_onnx(tmp_path, "good")
    write_onnx(tmp_path, ".git", "nonsense")
    (tmp_path / "README.md").write_text("hello")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    os.symlink(tmp_path / "good", tmp_path / "linked")
    assert [found.name for found in check_repository([tmp_path], PlanOptions())] == ["good", "linked"]


def test_a_link_to_a_folder_it_is_in_ends(tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, "good")
    os.symlink(folder, folder / "1" / "loop")
    (found,) = check_repository([tmp_path], PlanOptions())
    assert found.problems == ()


@pytest.mark.parametrize(
    ("file", "good", "bad", "what"),
    [
        ("model.onnx", b"\x08\x09\x3a\x03abc", b"\x08\x09\x3a\x04abc", "ONNX model"),
        ("model.onnx", b"\x3a\x00", b"version 1", "ONNX model"),
        ("model.onnx", b"\x3a\x00", b"", "ONNX model"),
        ("model.onnx", b"\x3a\x00", b"\x08\x09", "ONNX model"),
        ("model.pt", EMPTY_ZIP, b"\x3a\x00", "TorchScript model"),
        ("model.pt2", EMPTY_ZIP, b"\x3a\x00", "exported program"),
        ("xgboost.ubj", b"{L", b"x", "XGBoost model"),
        ("xgboost.json", b"{}", b"[]", "JSON object"),
        ("model.txt", b"tree\nversion=v4", b"hello", "LightGBM model"),
    ],
)
def test_a_check_looks_at_what_files_are(tmp_path: Path, file: str, good: bytes, bad: bytes, what: str) -> None:
    tensors = PLAIN.replace('backend: "onnxruntime"\n', "")
    path = write_onnx(tmp_path, "m", tensors, file=file) / "1" / file
    path.write_bytes(good)
    (found,) = check_repository([tmp_path], PlanOptions())
    assert found.problems == ()
    path.write_bytes(bad)
    (found,) = check_repository([tmp_path], PlanOptions())
    assert len(found.problems) == 1 and found.problems[0].startswith(f"m/1/{file} is no {what}")


def test_an_onnx_folder_is_looked_into(tmp_path: Path) -> None:
    folder = write_onnx(tmp_path, "m", file="") / "1" / "model.onnx"
    folder.mkdir()
    (found,) = check_repository([tmp_path], PlanOptions())
    assert found.problems == ("m/1/model.onnx holds no model.onnx",)
    (folder / "model.onnx").write_bytes(b"\x3a\x00")
    (found,) = check_repository([tmp_path], PlanOptions())
    assert found.problems == ()


# -- trivium models check ---------------------------------------------------------------------------------------------------------


def test_the_command_tells_every_fault_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_onnx(tmp_path, "good")
    assert main(["models", "check", str(tmp_path)]) == 0
    assert "good   onnxruntime  1         ok" in capsys.readouterr().out
    expected = [break_dims(tmp_path)]
    assert main(["models", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert all(text in out for text in expected)
    assert main(["models", "check", str(tmp_path), "--json"]) == 1
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["good"] == {"name": "good", "backend": "onnxruntime", "versions": [1], "problems": []} and found["bad"]["problems"]
    assert main(["models", "check", str(tmp_path / "nowhere")]) == 2


def test_a_folder_without_models_and_one_that_is_a_model_are_no_repositories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["models", "check", str(tmp_path / "empty")]) == 1
    assert "no models" in capsys.readouterr().out
    write_onnx(tmp_path / "models", "m")
    assert main(["models", "check", str(tmp_path / "models" / "m")]) == 1
    assert f"looks like the folder of a model, not like a repository: check {tmp_path / 'models'}" in capsys.readouterr().err
    assert main(["models", "check", str(tmp_path / "models")]) == 0
    assert capsys.readouterr().err == ""

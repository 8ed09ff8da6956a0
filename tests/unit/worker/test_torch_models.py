"""TorchScript and torch.export models against torch used directly, and archives that would run code when they are loaded."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from helpers_worker import load_here, request, served

from trivium.errors import ModelLoadError
from trivium.protocol.worker_messages import InstanceSetup
from trivium.worker.link import Link
from trivium.worker.torch_export import check_archive

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Two(torch.nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.dense(rows) * scale, rows.sum(1, keepdim=True).to(torch.bfloat16)


CONFIG = """
backend: "pytorch" max_batch_size: 8
input [ { name: "%s" data_type: TYPE_FP32 dims: 4 }, { name: "%s" data_type: TYPE_FP32 dims: 1 } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 3 }, { name: "OUTPUT__1" data_type: TYPE_BF16 dims: 1 } ]
"""


@pytest.fixture
def module(tmp_path: Path) -> Two:
    torch.manual_seed(0)
    (tmp_path / "1").mkdir()
    return Two().eval()


def pieces() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(5, 4)).astype(np.float32), generator.normal(size=(5, 1)).astype(np.float32)


async def test_torchscript_by_position_agrees_with_the_module(tmp_path: Path, module: Two) -> None:
    torch.jit.save(torch.jit.script(module), tmp_path / "1" / "model.pt")
    rows, scale = pieces()
    with torch.no_grad():
        expected, sums = module(torch.from_numpy(rows), torch.from_numpy(scale))
    async with served(tmp_path, CONFIG % ("INPUT__0", "INPUT__1")) as model:
        first, second = await model.run(
            request(INPUT__0=rows[:2], INPUT__1=scale[:2]),
            request(INPUT__1=scale[2:], INPUT__0=rows[2:], outputs=["OUTPUT__0"]),
        )
        np.testing.assert_allclose(np.concatenate([first.arrays_of("OUTPUT__0"), second.arrays_of("OUTPUT__0")]), expected.numpy(), rtol=1e-5)
        bits = np.frombuffer(first.responses[0].outputs[1].data, np.int16)
        assert torch.equal(torch.from_numpy(bits.copy()).view(torch.bfloat16), sums[:2, 0])
        assert [tensor.name for tensor in second.responses[0].outputs] == ["OUTPUT__0"]
        (wrong,) = await model.run(request(INPUT__0=rows[:, :2], INPUT__1=scale))
        assert wrong.error is not None
        assert "shapes cannot be multiplied" in wrong.error.message


async def test_dictionaries_and_names_of_arguments(tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"difference": left - right, "product": left * right}

    (tmp_path / "1").mkdir()
    torch.jit.save(torch.jit.script(Named()), tmp_path / "1" / "model.pt")
    config = """backend: "pytorch"
        input [ { name: "right" data_type: TYPE_INT64 dims: -1 }, { name: "left" data_type: TYPE_INT64 dims: -1 } ]
        output [ { name: "product" data_type: TYPE_INT64 dims: -1 }, { name: "difference" data_type: TYPE_INT64 dims: -1 } ]"""
    async with served(tmp_path, config) as model:
        found = await model.arrays(left=np.array([5, 7]), right=np.array([2, 3]))
    assert {name: array.tolist() for name, array in found.items()} == {"product": [10, 21], "difference": [3, 4]}


async def test_an_exported_program_needs_no_configuration(tmp_path: Path, module: Two) -> None:
    batch = torch.export.Dim("batch", min=1, max=1024)
    rows, scale = pieces()
    example = (torch.from_numpy(rows), torch.from_numpy(scale))
    torch.export.save(torch.export.export(module, example, dynamic_shapes=({0: batch}, {0: batch})), tmp_path / "1" / "model.pt2")
    expected, _ = module(*example)
    async with served(tmp_path, 'backend: "pytorch"') as model:
        assert model.config.max_batch_size == 4
        assert [(tensor.name, list(tensor.dims)) for tensor in model.config.input] == [("rows", [4]), ("scale", [1])]
        assert [(tensor.name, list(tensor.dims)) for tensor in model.config.output] == [("OUTPUT__0", [3]), ("OUTPUT__1", [1])]
        found = await model.arrays(rows=rows[:3], scale=scale[:3])
        np.testing.assert_allclose(found["OUTPUT__0"], expected[:3].detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("names", "content", "text"),
    [
        (("INPUT__0", "INPUT__2"), b"script", "neither the names of the model's arguments"),
        (("INPUT__0", "INPUT__1"), b"nonsense", "model.pt is no TorchScript"),
        (("INPUT__0", "INPUT__1"), b"pickle", "torch can't load model.pt"),
    ],
)
def test_what_can_not_be_loaded_says_why(tmp_path: Path, module: Two, names: tuple[str, str], content: bytes, text: str) -> None:
    path = tmp_path / "1" / "model.pt"
    match content:
        case b"script":
            torch.jit.save(torch.jit.script(module), path)
        case b"pickle":
            torch.save(module.state_dict(), path)
        case _:
            path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=text):
        load_here(tmp_path, CONFIG % names).create_instance(InstanceSetup(name="model_0", kind="CPU", device=0), cast(Link, None))


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (print, ("code of the archive ran",))


def _edit(path: Path, edits: dict[str, Callable[[bytes], bytes]]) -> None:
    """Rewrite the members of an archive whose name ends with a key of `edits`."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            edit = next((edit for end, edit in edits.items() if name.endswith(end)), None)
            archive.writestr(name, data if edit is None else edit(data))


def evil_pickle(_data: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    return buffer.getvalue()


def use_pickle(data: bytes) -> bytes:
    content = json.loads(data)
    for payload in content["config"].values():
        payload["use_pickle"] = True
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ({"sample_inputs/model.pt": evil_pickle}, "pickled objects other than tensors"),
        ({"model_weights_config.json": use_pickle, "weight_0": evil_pickle}, "pickled objects other than tensors"),
        ({"constants_config.json": lambda _: b'{"config": {"x": {"path_name": "opaque_obj_0"}}}'}, "opaque object"),
        ({"models/model.json": lambda data: data.replace(b"Symbol('s", b"__import__('os').system('s")}, "no plain arithmetic"),
        ({"models/model.json": lambda data: data.replace(b"torch.ops.aten.linear.default", b"torch.os.system")}, "calls 'torch.os.system'"),
        ({"models/model.json": lambda data: data.replace(b"torch.ops.aten.linear.default", b"torch.ops.aten.from_file.default")}, "calls"),
        ({"models/model.json": lambda _: b"{"}, "is no JSON"),
    ],
)
def test_an_archive_that_could_run_code_is_refused(
    tmp_path: Path, module: Two, edits: dict[str, Callable[[bytes], bytes]], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=1024)
    rows, scale = pieces()
    program = torch.export.export(module, (torch.from_numpy(rows), torch.from_numpy(scale)), dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, path)
    check_archive(path)
    _edit(path, edits)
    with pytest.raises(ModelLoadError, match=text):
        check_archive(path)
    assert "ran" not in capfd.readouterr().out

"""Safetensors, single and sharded: read as the library reads them, refused where they contradict themselves."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trivium.errors import ModelLoadError, UnsupportedWeightFormat, WeightError
from trivium.sources import ModelFiles, resolve
from trivium.weights import open_source
from trivium.weights.safetensors import DTYPES, SafetensorsSource

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(7.0), "c": torch.arange(8, dtype=torch.bfloat16), "e": torch.empty(0, 4)}


def write(folder: Path, shards: dict[str, dict[str, torch.Tensor]], index: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def open_folder(folder: Path):
    return open_source(resolve(str(folder)))


def raw_file(path: Path, header: str | bytes | dict[str, Any], data: bytes = b"") -> Path:
    text = json.dumps(header).encode() if isinstance(header, dict) else header.encode() if isinstance(header, str) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_tensors_come_as_they_were_saved(tmp_path):
    opened = open_folder(write(tmp_path / "m", {"model.safetensors": TENSORS}))
    assert sorted(opened.names()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert opened.shape(name) == tuple(tensor.shape)
        assert opened.load(name).dtype is tensor.dtype
        assert torch.equal(opened.load(name), tensor)
    assert opened.total_bytes == 6 * 4 + 4 + 8 * 2
    assert opened.file_of("a").endswith("model.safetensors")


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_type_is_read(tmp_path, name):
    dtype = DTYPES[name]
    value = torch.tensor([1, 0, 1, 1]).to(dtype)
    save_file({"x": value}, tmp_path / "a.safetensors")
    found = SafetensorsSource([tmp_path / "a.safetensors"]).load("x")
    assert found.dtype is dtype
    assert torch.equal(found.view(torch.uint8), value.view(torch.uint8))


def test_names_are_in_the_order_of_the_file(tmp_path):
    opened = open_folder(write(tmp_path / "m", {"model.safetensors": TENSORS}))
    header = json.loads((tmp_path / "m" / "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert opened.names() == sorted(header, key=lambda name: header[name]["data_offsets"])


def test_tensors_share_the_files_pages_and_writing_does_not_change_it(tmp_path):
    folder = write(tmp_path / "m", {"model.safetensors": TENSORS})
    opened = open_folder(folder)
    before = (folder / "model.safetensors").read_bytes()
    first = opened.load("b")
    first.zero_()
    assert torch.equal(opened.load("b"), torch.zeros(2, 3)), "one mapping, no copies"
    assert (folder / "model.safetensors").read_bytes() == before


def test_shards_are_read_by_the_index(tmp_path):
    shards = {"a-1.safetensors": {"x": torch.ones(2)}, "a-2.safetensors": {"y": torch.zeros(3)}, "consolidated.safetensors": {"x": torch.zeros(2)}}
    opened = open_folder(write(tmp_path / "m", shards, {"x": "a-1.safetensors", "y": "a-2.safetensors"}))
    assert opened.names() == ["x", "y"]
    assert torch.equal(opened.load("x"), torch.ones(2))
    assert opened.file_of("y").endswith("a-2.safetensors")


def test_the_index_says_which_of_two_copies_counts_and_hides_the_rest(tmp_path):
    first = {"x": torch.ones(2), "y": torch.zeros(3), "extra": torch.ones(1)}
    shards = {"a-1.safetensors": first, "a-2.safetensors": {"x": torch.zeros(2)}}
    opened = open_folder(write(tmp_path / "m", shards, {"x": "a-2.safetensors", "y": "a-1.safetensors"}))
    assert sorted(opened.names()) == ["x", "y"]
    assert torch.equal(opened.load("x"), torch.zeros(2))


def test_shards_in_the_hubs_cache_are_links_with_the_names_of_the_index(tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.parent.mkdir(parents=True)
    shards = {"f00": {"x": torch.ones(2)}, "ba5": {"y": torch.zeros(3)}}
    write(snapshot.parent.parent / "blobs", shards, {"x": "a-1.safetensors", "y": "a-2.safetensors"})
    snapshot.mkdir()
    links = {"a-1.safetensors": "f00", "a-2.safetensors": "ba5"} | {name: name for name in ("config.json", "model.safetensors.index.json")}
    for name, blob in links.items():
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    opened = open_folder(snapshot)
    assert opened.names() == ["x", "y"]
    assert opened.file_of("y") == str(snapshot / "a-2.safetensors")


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path):
    shards = {"a-1.safetensors": {"x": torch.ones(2)}, "a-2.safetensors": {"y": torch.zeros(3)}}
    folder = write(tmp_path / "m", shards, {"x": "a-1.safetensors", "y": "a-1.safetensors"})
    with pytest.raises(WeightError, match="'y' is missing in a-1.safetensors, where model.safetensors.index.json says it is"):
        open_folder(folder)


def test_without_an_index_files_must_not_repeat_each_other(tmp_path):
    folder = write(tmp_path / "m", {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"x": torch.ones(2)}})
    with pytest.raises(WeightError, match=r"'x' is in .*a\.safetensors and again in .*b\.safetensors"):
        open_folder(folder)
    folder = write(tmp_path / "n", {"a.safetensors": {"x": torch.ones(2)}, "b.safetensors": {"y": torch.ones(2)}})
    assert open_folder(folder).names() == ["x", "y"]


def test_a_missing_tensor_is_named_with_its_file(tmp_path):
    opened = open_folder(write(tmp_path / "m", {"model.safetensors": {"model.layers.0.q.weight": torch.ones(2)}}))
    for ask in (opened.load, opened.shape, opened.file_of):
        with pytest.raises(WeightError, match=r"'model.layers.9.q.weight' is missing in .*model.safetensors. It has model.layers.0.q.weight"):
            ask("model.layers.9.q.weight")


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


LYING: list[tuple[str | bytes | dict[str, Any], bytes, str]] = [
    ({"x": entry()}, bytes(4), r"truncated: tensor 'x' \[2\] ends at byte \d+, the file has \d+"),
    ({"x": entry()}, bytes(12), "4 bytes after its last tensor"),
    ({"x": entry(), "y": entry()}, bytes(8), "tensor '[xy]' starts at byte"),
    ({"x": entry(offsets=(4, 12))}, bytes(12), "tensor 'x' starts at byte"),
    ({"x": entry(shape=(3,))}, bytes(8), r"'x' \[3\] of type F32 can't take 8 bytes"),
    ({"x": entry(offsets=(8, 0))}, bytes(8), "can't take -8 bytes"),
    ({"x": entry(shape=(2**40, 2**40))}, bytes(8), "can't take 8 bytes"),
    ({"x": entry(shape=(-2, -1))}, bytes(8), "no valid shape and data_offsets"),
    ({"x": entry(shape=(2.0,))}, bytes(8), "no valid shape and data_offsets"),
    ({"x": entry(shape=(True, 2))}, bytes(8), "no valid shape and data_offsets"),
    ({"x": entry(offsets=(0,))}, bytes(8), "no valid shape and data_offsets"),
    ({"x": []}, bytes(8), "no valid shape and data_offsets"),
    ({"x": {}}, bytes(8), "no valid shape and data_offsets"),
    ('{"x": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}, "x": {}}', bytes(8), "key 'x' appears twice"),
    ('{"x": {"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8), "key 'dtype' appears twice"),
    ("[1]", b"", "it is no JSON object"),
    ("{", b"", "no valid safetensors header"),
    (b"\xff{}", b"", "no valid safetensors header"),
    ('{"a":' + "[" * 100_000, b"", "no valid safetensors header"),
]


@pytest.mark.parametrize(("header", "data", "message"), LYING)
def test_a_header_that_lies_is_an_error_that_names_the_file(tmp_path, header, data, message):
    with pytest.raises(WeightError, match=message) as caught:
        SafetensorsSource([raw_file(tmp_path / "bad.safetensors", header, data)])
    assert "bad.safetensors" in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"abc", struct.pack("<Q", 2**63), struct.pack("<Q", 200_000_000), struct.pack("<Q", 100) + b"{}"])
def test_a_file_too_short_for_its_header(tmp_path, raw):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(WeightError, match="bad.safetensors is truncated"):
        SafetensorsSource([path])


def test_a_header_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("trivium.weights.safetensors.MAX_HEADER_BYTES", 10)
    with pytest.raises(WeightError, match="at most 10"):
        SafetensorsSource([raw_file(tmp_path / "bad.safetensors", {"x": entry()}, bytes(8))])


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "C64", 7])
def test_an_unknown_type_is_named(tmp_path, dtype):
    with pytest.raises(UnsupportedWeightFormat, match=f"tensor 'x' is of type {dtype}. Supported: F64"):
        SafetensorsSource([raw_file(tmp_path / "bad.safetensors", {"x": entry(dtype)}, bytes(8))])


def test_flipped_bits_in_the_header_give_a_typed_error_or_a_file_that_is_whole(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors")
    raw = (tmp_path / "a.safetensors").read_bytes()
    length = 8 + struct.unpack("<Q", raw[:8])[0]
    path = tmp_path / "b.safetensors"
    for position in range(length):
        flipped = bytearray(raw)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(bytes(flipped))
        try:
            opened = SafetensorsSource([path])
        except WeightError:
            continue
        except UnsupportedWeightFormat:
            continue
        for name in opened.names():
            opened.load(name)


def test_a_folder_without_weights_says_so(tmp_path):
    folder = write(tmp_path / "m", {})
    with pytest.raises(ModelLoadError, match="has no .safetensors files"):
        open_folder(folder)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedWeightFormat, match="pytorch_model.bin, a format that can hold code and is never read"):
        open_folder(folder)


def test_files_without_weights_that_are_no_folder():
    with pytest.raises(ModelLoadError, match="has no .safetensors files"):
        open_source(ModelFiles(name="x", kind="folder", path=Path("/nowhere"), config={}))

"""The GGUF container: every kind of value, and every way in which a header can lie."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from helpers_gguf import TensorSpec, f32_tensor, gguf_bytes, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivium.errors import ModelLoadError, TriviumError, WeightError
from trivium.sources.gguf_file import BLOCK_LAYOUT, read_gguf

VALUES = {
    "u8": ("u8", 200),
    "i8": ("i8", -3),
    "u16": ("u16", 60000),
    "i16": ("i16", -300),
    "u32": 7,
    "i32": -7,
    "f32": 0.5,
    "f64": ("f64", 1e300),
    "u64": ("u64", 2**63),
    "i64": ("i64", -(2**62)),
    "yes": True,
    "text": "héllo",
    "strings": ["a", "", "你好"],
    "numbers": ("i32", [1, -2, 3]),
    "floats": [0.5, 0.25],
    "flags": ("bool", [True, False]),
    "empty": ("u32", []),
}


def test_every_kind_of_value_is_read(tmp_path):
    gguf = read_gguf(write_gguf(tmp_path / "a.gguf", VALUES))
    expected = {key: value[1] if isinstance(value, tuple) else value for key, value in VALUES.items()}
    assert gguf.metadata == expected
    assert type(gguf.metadata["yes"]) is bool
    assert type(gguf.metadata["flags"][0]) is bool


def test_tensors_have_torchs_shape_and_their_place_in_the_file(tmp_path):
    path = write_gguf(
        tmp_path / "a.gguf", {"k": 1}, [f32_tensor("a", (2, 3), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), TensorSpec("b", (2, 32), 8, bytes(68))]
    )
    tensors = read_gguf(path).tensors
    assert list(tensors) == ["a", "b"]
    assert (tensors["a"].shape, tensors["a"].type_name, tensors["a"].num_bytes) == ((2, 3), "F32", 24)
    assert (tensors["b"].shape, tensors["b"].type_name, tensors["b"].num_bytes) == ((2, 32), "Q8_0", 68)
    assert tensors["a"].offset % 32 == 0
    raw = path.read_bytes()
    assert struct.unpack_from("<6f", raw, tensors["a"].offset) == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def test_a_file_may_choose_its_alignment(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes({"general.alignment": 64}, [f32_tensor("a", (1,), [3.0])], padding=64))
    offset = read_gguf(path).tensors["a"].offset
    assert offset % 64 == 0
    assert struct.unpack_from("<f", path.read_bytes(), offset) == (3.0,)


def test_typed_access_checks_the_type_and_names_the_key(tmp_path):
    gguf = read_gguf(write_gguf(tmp_path / "a.gguf", VALUES))
    assert (gguf.integer("u32"), gguf.number("u32"), gguf.number("f32"), gguf.text("text"), gguf.flag("yes")) == (7, 7.0, 0.5, "héllo", True)
    assert (gguf.integer("none", 3), gguf.number("none"), gguf.text("none"), gguf.array("none")) == (3, None, None, None)
    assert gguf.flag("none", True) is True
    assert gguf.integer("yes") == 1
    assert (gguf.require_integer("i32"), gguf.require_text("text"), gguf.require_array("floats")) == (-7, "héllo", [0.5, 0.25])
    for wrong in (lambda: gguf.integer("text"), lambda: gguf.text("u32"), lambda: gguf.number("floats"), lambda: gguf.array("u32")):
        with pytest.raises(ModelLoadError, match=r"a\.gguf: metadata '\w+' is a \w+, expected"):
            wrong()
    with pytest.raises(ModelLoadError, match="has no metadata 'absent'"):
        gguf.require_integer("absent")


def header(num_tensors: int = 0, num_values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values)


def key(name: bytes, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind)


def tensor(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


HUGE = 2**62
BROKEN = [
    (b"", "too short"),
    (b"GGUF", "too short"),
    (b"NOPE" + bytes(60), "is not a GGUF file"),
    (header(version=1) + bytes(20), "version 1 is not supported"),
    (header(version=0x03000000) + bytes(20), "version 50331648 is not supported"),
    (header(num_values=HUGE) + bytes(20), "claims 4611686018427387904 metadata values"),
    (header(num_tensors=HUGE) + bytes(20), "claims 4611686018427387904 tensors"),
    (header(num_values=1) + struct.pack("<Q", HUGE) + bytes(60), "a name of 4611686018427387904 bytes"),
    (header(num_values=1) + key(b"k", 8) + struct.pack("<Q", 1000), "truncated: its header goes on beyond"),
    (header(num_values=1) + key(b"k", 8) + struct.pack("<Q", HUGE), "truncated"),
    (header(num_values=1) + key(b"k", 77) + bytes(20), "unknown metadata type 77"),
    (header(num_values=1) + key(b"\xff", 4) + bytes(20), "not valid UTF-8"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQ", 8, HUGE) + bytes(20), "claims 4611686018427387904 strings"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQ", 4, HUGE) + bytes(20), "claims 4611686018427387904 array items"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQ", 9, 1) + bytes(20), "nested metadata arrays"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQQ", 8, 1, HUGE), "truncated"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQQ", 8, 2, 0) + bytes(4), "claims 2 strings"),
    (header(num_values=1) + key(b"k", 9) + struct.pack("<IQQ", 8, 1, 1) + b"\xff" + bytes(9), "not valid UTF-8"),
    (header(num_values=2) + (key(b"k", 4) + bytes(4)) * 2 + bytes(9), "metadata 'k' appears twice"),
    (header(num_values=1) + key(b"general.alignment", 4) + bytes(40), "general.alignment is 0"),
    (header(1) + tensor(b"t", [1] * 5, 0, 0) + bytes(64), "has 5 dimensions"),
    (header(1) + tensor(b"t", [4], 12345, 0) + bytes(64), "tensor 't' has the unknown type number 12345"),
    (header(1) + tensor(b"t", [33, 2], 8, 0) + bytes(64), r"rows of tensor 't' \[2, 33\] are no whole blocks of 32 \(Q8_0\)"),
    (header(1) + tensor(b"t", [64], 0, 0) + bytes(64), r"truncated: tensor 't' \[64\] ends at byte 320, the file has \d+"),
    (header(1) + tensor(b"t", [HUGE, HUGE], 0, 0) + bytes(64), "truncated: tensor 't'"),
    (header(1) + tensor(b"t", [4], 0, HUGE) + bytes(64), "truncated: tensor 't'"),
    (header(2) + tensor(b"t", [4], 0, 0) * 2 + bytes(64), "tensor 't' appears twice"),
]


@pytest.mark.parametrize(("raw", "message"), BROKEN)
def test_a_header_that_lies_is_an_error_that_names_the_file(tmp_path, raw, message):
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises((ModelLoadError, WeightError), match=message) as caught:
        read_gguf(path)
    assert "bad.gguf" in str(caught.value)


WHOLE = gguf_bytes(VALUES, [f32_tensor("a", (2, 3), [1.0] * 6), TensorSpec("b", (32,), 8, bytes(34))])


@pytest.mark.parametrize("length", range(0, len(WHOLE) - 30, 7))
def test_a_file_cut_anywhere_is_an_error(tmp_path, length):
    path = tmp_path / "cut.gguf"
    path.write_bytes(WHOLE[:length])
    with pytest.raises(ModelLoadError):
        read_gguf(path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_give_a_typed_error_or_a_readable_file(tmp_path, data):
    raw = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path: Path = tmp_path / "flipped.gguf"
    path.write_bytes(bytes(raw))
    try:
        gguf = read_gguf(path)
    except TriviumError:
        return
    assert all(each.offset + each.num_bytes <= len(raw) for each in gguf.tensors.values())


def test_block_layouts_are_those_of_the_gguf_package():
    constants = pytest.importorskip("gguf.constants")
    theirs = {kind.value: (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    for type_id, layout in BLOCK_LAYOUT.items():
        assert theirs.get(type_id, layout) == layout

"""`config.pbtxt`: what is wrong is told with file, line and column; what only shows later, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.repository.config_text import MAX_CONFIG_BYTES, BadModelConfig, Field, parse_config, read_config

TEXT = """\
# a comment { with braces
name: "m"  # and another "
input [
  {
    name: "a" data_type: TYPE_FP32
    dims: [ 1,
            2 ]
  },
  { name: 'b'
    reshape { shape: [1] } }
]
output { name: "c" "d" }
output <
  name: "e"
>
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]; default_queue_policy: { max_queue_size: 3 }
}
parameters: { key: "k" value: { string_value: "a { brace" } }
parameters { key: "l" value { string_value: "x" } }
"""


@pytest.mark.parametrize(
    ("field", "line"),
    [
        (("name",), 2),
        (("input",), 3),
        (("input", 0), 4),
        (("input", 0, "name"), 5),
        (("input", 0, "dims"), 6),
        (("input", 1, "name"), 9),
        (("input", 1, "reshape"), 10),
        (("input", 1, "reshape", "shape"), 10),
        (("input", 1, "dims"), 9),
        (("output", 0, "name"), 12),
        (("output", 1, "name"), 14),
        (("dynamic_batching", "preferred_batch_size"), 17),
        (("dynamic_batching", "default_queue_policy", "max_queue_size"), 17),
        (("parameters", 0, "value", "string_value"), 19),
        (("parameters", 1), 20),
        (("dynamic_batching", "priority_levels"), 16),
    ],
)
def test_every_field_has_its_line(field: Field, line: int) -> None:
    text = parse_config(TEXT, "config.pbtxt")
    assert text.where(field) == f"config.pbtxt:{line}"
    assert text.config.output[0].name == "cd"


def test_what_the_text_does_not_have_is_placed_in_the_file() -> None:
    assert parse_config(TEXT, "config.pbtxt").where(("ensemble_scheduling",)) == "config.pbtxt"
    assert parse_config("", "config.pbtxt").where(()) == "config.pbtxt"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "m"\nmax_batchsize: 4\n', 'f:2:1: message type "ModelConfig" has no field named "max_batchsize".'),
        ("\n\nmax_batch_size: x\n", "f:3:17: "),
        ("max_batch_size: 99999999999", "out of range"),
        ('name: "a" name: "b"', 'should not have multiple "name" fields'),
        ("input [ { data_type: TYPE_FLOAT } ]", "f:1:22: "),
        ("input {", "f:1:7: "),
        ('name: "open', "missing ending quote"),
        ("dynamic_batching { } sequence_batching { }", "dynamic_batching"),
        ("}", "f:1:1: "),
        ("\x00", "f:1:1: "),
        ("name: 3", "f:1:7: "),
        ("[type.googleapis.com/x] { }", "f:1:"),
    ],
)
def test_what_is_no_configuration_is_placed(text: str, message: str) -> None:
    with pytest.raises(BadModelConfig) as caught:
        parse_config(text, "f")
    assert message in caught.value.message and caught.value.message.startswith("f:")


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    with pytest.raises(BadModelConfig, match=r"config\.pbtxt: No such file"):
        read_config(path, str(path))
    path.write_bytes(b'name: "\xff"')
    with pytest.raises(BadModelConfig, match="not UTF-8 at byte 7"):
        read_config(path, str(path))
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(BadModelConfig, match="at most 16,777,216 bytes"):
        read_config(path, str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(BadModelConfig, match=r"config\.pbtxt: Is a directory"):
        read_config(path, str(path))

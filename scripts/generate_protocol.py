"""Writes `descriptors.binpb` and the `.pyi` stubs of `src/trivium/protocol` from its `.proto` files. Needs `grpcio-tools`.

    .venv/bin/python scripts/generate_protocol.py

At run time only the `protobuf` package is needed: `trivium.protocol.descriptors` makes the message classes from `descriptors.binpb`.
"""

from __future__ import annotations

import keyword
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

PROTOCOL = Path(__file__).resolve().parent.parent / "src" / "trivium" / "protocol"
STUBS = {"model_config.proto": "model_config", "grpc_service.proto": "kserve", "health.proto": "health"}
"""File to the module of `trivium.protocol` that has its messages."""

_PYTHON_TYPES = {
    "bool": (FieldDescriptorProto.TYPE_BOOL,),
    "float": (FieldDescriptorProto.TYPE_DOUBLE, FieldDescriptorProto.TYPE_FLOAT),
    "str": (FieldDescriptorProto.TYPE_STRING,),
    "bytes": (FieldDescriptorProto.TYPE_BYTES,),
}


class Stub:
    """The text of one module's stub."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._package = f".{file.package}."
        self._foreign: set[str] = set()
        self._own = {message.name for message in file.message_type}
        body: list[str] = []
        for enum in file.enum_type:
            body += ["", *self._enum(enum, is_nested=False)]
        for message in file.message_type:
            body += ["", *self._message(message)]
        imports = [f"from trivium.protocol.model_config import {name}" for name in sorted(self._foreign)]
        self.text = "\n".join([*_HEAD, *imports, *body]) + "\n"

    def _enum(self, enum: EnumDescriptorProto, *, is_nested: bool) -> list[str]:
        def declare(kind: str) -> str:
            return f"ClassVar[{kind}]" if is_nested else f"Final[{kind}]"

        return [f"{enum.name}: {declare('EnumType')}", *(f"{value.name}: {declare('int')}" for value in enum.value)]

    def _message(self, message: DescriptorProto) -> list[str]:
        maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
        lines: list[str] = []
        for enum in message.enum_type:
            lines += self._enum(enum, is_nested=True)
        for nested in message.nested_type:
            if not nested.options.map_entry:
                lines += self._message(nested)
        # A field named as a keyword (`global`) can't be declared: it is read with getattr.
        types = {field.name: self._field(field, maps) for field in message.field if not keyword.iskeyword(field.name)}
        lines += [f"{name}: {kind}" for name, (kind, _) in types.items()]
        arguments = "".join(f", {name}: {kind} | None = None" for name, (_, kind) in types.items())
        lines.append(f"def __init__(self{', *' if arguments else ''}{arguments}) -> None: ...")
        return [f"class {message.name}(Message):", *(f"    {line}" for line in lines)]

    def _field(self, field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> tuple[str, str]:
        """Type of the attribute and of the constructor's argument."""
        entry = maps.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            key, value = (self._single(part) for part in entry.field)
            kind = "MessageMap" if entry.field[1].type == FieldDescriptorProto.TYPE_MESSAGE else "ScalarMap"
            return f"{kind}[{key}, {value}]", f"Mapping[{key}, {value}]"
        single = self._single(field)
        if field.label != FieldDescriptorProto.LABEL_REPEATED:
            return single, single
        kind = "RepeatedCompositeFieldContainer" if field.type == FieldDescriptorProto.TYPE_MESSAGE else "RepeatedScalarFieldContainer"
        return f"{kind}[{single}]", f"Iterable[{single}]"

    def _single(self, field: FieldDescriptorProto) -> str:
        if field.type == FieldDescriptorProto.TYPE_MESSAGE:
            name = field.type_name.removeprefix(self._package)
            if name.partition(".")[0] not in self._own:
                self._foreign.add(name)
            return name
        return next((name for name, kinds in _PYTHON_TYPES.items() if field.type in kinds), "int")


_HEAD = (
    "# Made by scripts/generate_protocol.py.",
    "from collections.abc import Iterable, Mapping",
    "from typing import ClassVar, Final",
    "",
    "from google.protobuf.internal.containers import MessageMap, RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer, ScalarMap",
    "from google.protobuf.message import Message",
    "",
    "from trivium.protocol.descriptors import EnumType",
)


def compile_descriptors() -> bytes:
    """The serialized `FileDescriptorSet` of every `.proto`, dependencies first."""
    protos = PROTOCOL / "proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", "--descriptor_set_out=/dev/stdout", *STUBS]
    return subprocess.run(command, check=True, capture_output=True, cwd=protos).stdout


def stubs(descriptors: bytes) -> dict[str, str]:
    """Text by module name, not yet formatted."""
    return {STUBS[file.name]: Stub(file).text for file in FileDescriptorSet.FromString(descriptors).file}


def main() -> None:
    descriptors = compile_descriptors()
    (PROTOCOL / "descriptors.binpb").write_bytes(descriptors)
    for name, text in stubs(descriptors).items():
        path = PROTOCOL / f"{name}.pyi"
        path.write_text(text)
        for tool in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
            subprocess.run([sys.executable, "-m", "ruff", *tool, str(path)], check=True)


if __name__ == "__main__":
    main()

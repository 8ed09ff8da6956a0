"""Message classes of the protobuf formats we speak, in a descriptor pool of their own.

protobuf's default pool takes each file name and each message name once in a process. With ours apart, `tritonclient` or any program of
the user may register the same names beside us. `scripts/generate_protocol.py` writes `descriptors.binpb` and the stubs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, Protocol

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


class EnumType(Protocol):
    """What protobuf gives for an enum: its values are plain ints."""

    def Name(self, number: int) -> str: ...

    def Value(self, name: str | None) -> int: ...

    def keys(self) -> list[str]: ...

    def values(self) -> list[int]: ...

    def items(self) -> list[tuple[str, int]]: ...


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of a gRPC service."""

    name: str
    path: str
    """As in the HTTP/2 request: `/package.Service/Method`."""
    request: type[Message]
    response: type[Message]
    streams_requests: bool
    streams_responses: bool


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString((files("trivium.protocol") / "descriptors.binpb").read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL: Final = _load()


def definitions(file: str) -> dict[str, Any]:
    """Message classes, enums and the enums' values of a `.proto`, by the names that a module should have for them."""
    descriptor = _POOL.FindFileByName(file)
    found: dict[str, Any] = {name: GetMessageClass(message) for name, message in descriptor.message_types_by_name.items()}
    for name, enum in descriptor.enum_types_by_name.items():
        found[name] = EnumTypeWrapper(enum)
        found.update({value.name: value.number for value in enum.values})
    return found


def service_methods(name: str) -> Mapping[str, Method]:
    """Methods of a service (`inference.GRPCInferenceService`, `grpc.health.v1.Health`) by name."""
    service = _POOL.FindServiceByName(name)
    return MappingProxyType(
        {
            method.name: Method(
                name=method.name,
                path=f"/{name}/{method.name}",
                request=GetMessageClass(method.input_type),
                response=GetMessageClass(method.output_type),
                streams_requests=method.client_streaming,
                streams_responses=method.server_streaming,
            )
            for method in service.methods
        }
    )

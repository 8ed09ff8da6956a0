# Made by scripts/generate_protocol.py.
from typing import ClassVar

from google.protobuf.message import Message

from trivium.protocol.descriptors import EnumType

class HealthCheckRequest(Message):
    service: str
    def __init__(self, *, service: str | None = None) -> None: ...

class HealthCheckResponse(Message):
    ServingStatus: ClassVar[EnumType]
    UNKNOWN: ClassVar[int]
    SERVING: ClassVar[int]
    NOT_SERVING: ClassVar[int]
    SERVICE_UNKNOWN: ClassVar[int]
    status: int
    def __init__(self, *, status: int | None = None) -> None: ...

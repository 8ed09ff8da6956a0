"""Frames: their layout, and the few that we send. RFC 9113, sections 4 and 6."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from trivium.frontends.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1

HEADER: Final = struct.Struct(">BHBBI")
"""Length (24 bits as 8 and 16), type, flags, stream."""
_WORD: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")


class FrameType(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag:
    """Plain numbers: several are tested for each frame, and an `IntFlag` takes a microsecond for it."""

    ACK: Final = 1
    END_STREAM: Final = 1
    END_HEADERS: Final = 4
    PADDED: Final = 8
    PRIORITY: Final = 32


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(FrameType.GOAWAY, 0, 0, _WORD.pack(last_stream_id) + _WORD.pack(code) + text.encode())


SETTINGS_ACK: Final = frame(FrameType.SETTINGS, Flag.ACK, 0)


def word(payload: bytes) -> int:
    """The 31 bits that most fields have, without the reserved one."""
    return _WORD.unpack_from(payload)[0] & 0x7FFF_FFFF

"""What a peer does wrong: to the whole connection, or to one stream."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class PeerError(Exception):
    """The connection is told why, and closed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class CompressionError(PeerError):
    """The header tables of both sides are out of step: nothing after it can be read."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.COMPRESSION_ERROR, message)


class StreamError(Exception):
    """The stream is reset, the connection goes on."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

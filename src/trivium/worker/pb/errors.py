"""Errors of models: `TritonError` is the answer to one request, `TritonModelException` is raised."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import Final

from trivium import errors
from trivium.protocol.worker_messages import WireResponse


class TritonModelException(Exception):
    """Something asked of the server did not work."""


class TritonError:
    """The error a request is answered with."""

    UNKNOWN: Final = 0
    INTERNAL: Final = 1
    NOT_FOUND: Final = 2
    INVALID_ARG: Final = 3
    UNAVAILABLE: Final = 4
    UNSUPPORTED: Final = 5
    ALREADY_EXISTS: Final = 6
    CANCELLED: Final = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message


_SLUGS: Final = {
    TritonError.NOT_FOUND: errors.ModelNotFound.slug,
    TritonError.INVALID_ARG: errors.InvalidRequest.slug,
    TritonError.UNAVAILABLE: errors.NotReady.slug,
    TritonError.UNSUPPORTED: errors.UnsupportedFeature.slug,
    TritonError.ALREADY_EXISTS: errors.InvalidRequest.slug,
    TritonError.UNKNOWN: errors.InvalidRequest.slug,
    TritonError.CANCELLED: errors.RequestCancelled.slug,
}
_UNAVAILABLE: Final = (errors.Overloaded.slug, errors.DeadlineExceeded.slug, errors.EngineDead.slug)
_CODES: Final = {slug: code for code, slug in reversed(_SLUGS.items())} | dict.fromkeys(_UNAVAILABLE, TritonError.UNAVAILABLE)


def to_wire(error: TritonError) -> WireResponse:
    return WireResponse(slug=_SLUGS.get(error.code(), errors.InternalError.slug), message=clean(str(error.message())))


def clean(text: str) -> str:
    """`text` as it can be sent: lone surrogates are no characters."""
    return text.encode("utf-8", "replace").decode()


def from_wire(slug: str, message: str) -> TritonError:
    return TritonError(message, _CODES.get(slug, TritonError.INTERNAL))


def unhandled(error: BaseException, root: Path) -> str:
    """An exception's type, text and where it came from, as Triton words it; paths are relative to `root`, those outside only names."""
    lines = [f"{type(error).__name__}: {error}", "", "At:"]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame: FrameType | None = trace.tb_frame if trace is not None else None
    number = trace.tb_lineno if trace is not None else 0
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(root):
            lines.append(f"  {path.relative_to(root)}({number}): {frame.f_code.co_name}")
        elif not _is_ours(path):
            lines.append(f"  {path.name}({number}): {frame.f_code.co_name}")
        else:
            break
        frame = frame.f_back
        number = frame.f_lineno if frame is not None else 0
    return clean("\n".join(lines) + "\n")


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(Path(__file__).parent.parent) or not path.is_absolute()

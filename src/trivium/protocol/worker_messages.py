"""Messages between the server and a worker process: length-prefixed msgpack frames on a socket pair, one tagged union each way.

A frame is four bytes of length, little endian, and a message. Tensors below `INLINE_LIMIT` bytes travel inside it, larger ones lie in the
sender's `SharedRegion` and the message says where. Requests are numbered in the order they are sent; a batch names its first.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from trivium.infer import CorrelationId, DataType, ParameterValue

INLINE_LIMIT: Final = 64 * 1024
"""From this many bytes on, copying through a socket costs more than a place in shared memory."""
MAX_FRAME_SIZE: Final = 2**32 - 1
HEADER_SIZE: Final = 4


class WireTensor(msgspec.Struct, array_like=True, gc=False):
    """`offset` >= 0: the `size` bytes lie there in the sender's region, and the receiver hands the block back; else they are `data`."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: memoryview
    offset: int = -1
    size: int = 0


class WireRequest(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """One request of a batch, as the model sees it; or a call of another model, which `model` then names."""

    inputs: list[WireTensor]
    outputs: list[str] = []
    """Names of the requested outputs; empty: all."""
    id: str = ""
    parameters: dict[str, ParameterValue] = {}
    correlation_id: CorrelationId = 0
    flags: int = 0
    """1: first of its sequence, 2: last."""
    priority: int = 0
    timeout_us: int = 0
    model: str = ""
    version: str = ""


class WireResponse(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """One answer, or with `slug` the error that takes its place. `is_rescheduled`: neither, the request runs again with a later batch."""

    outputs: list[WireTensor] = []
    parameters: dict[str, ParameterValue] = {}
    slug: str = ""
    message: str = ""
    is_final: bool = True
    is_null: bool = False
    is_rescheduled: bool = False


class InstanceSetup(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One instance of the process; its sockets and regions are arguments of the command line, in the same order."""

    name: str
    kind: str
    """CPU, GPU or MODEL."""
    device: int
    """Index of the GPU, else 0."""


class Setup(msgspec.Struct, tag="setup", array_like=True, frozen=True, kw_only=True):
    """The first frame, on the first instance's socket: what to load."""

    model: str
    version: int
    backend: str
    config_json: str
    version_path: str
    model_path: str
    instances: list[InstanceSetup]
    auto_complete: bool
    default_max_batch_size: int
    settings: dict[str, str]
    """Of the back end, from the command line."""
    allow_code: bool
    """Whether code from the repository may run."""


class Batch(msgspec.Struct, tag="batch", array_like=True, gc=False):
    """Run these. They are numbered `first_key`, `first_key` + 1, …"""

    first_key: int
    requests: list[WireRequest]


class Cancel(msgspec.Struct, tag="cancel", array_like=True, frozen=True):
    """Nobody waits for this request any more."""

    key: int


class Release(msgspec.Struct, tag="release", array_like=True, frozen=True):
    """The blocks at these offsets of the receiver's own region have been read. Either way."""

    offsets: list[int]


class CallResponse(msgspec.Struct, tag="call_response", array_like=True, gc=False):
    """One response of another model to `Call` number `key`."""

    key: int
    response: WireResponse


class ControlReply(msgspec.Struct, tag="control_reply", array_like=True, frozen=True):
    """`value` is what was asked for; with `slug` it is an error."""

    key: int
    value: float = 0.0
    slug: str = ""
    message: str = ""


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """No batch follows: finalize, and end when the process's other instances have."""


ToWorker = Setup | Batch | Cancel | Release | CallResponse | ControlReply | Shutdown


class Progress(msgspec.Struct, tag="progress", array_like=True, frozen=True):
    stage: str


class Loaded(msgspec.Struct, tag="loaded", array_like=True, frozen=True):
    """The instance can run batches. `config_json`: the configuration with what the model's files told; empty if nothing was looked for."""

    config_json: str = ""


class LoadFailed(msgspec.Struct, tag="load_failed", array_like=True, frozen=True):
    slug: str
    message: str


class BatchDone(msgspec.Struct, tag="batch_done", array_like=True, gc=False):
    """The batch that began with `first_key` has ended; the next may run. Responses in the order of its requests, none if it is decoupled.

    `begin_ns`, `end_ns`: when the model computed, on the system's monotonic clock.
    """

    first_key: int
    responses: list[WireResponse | None]
    begin_ns: int
    end_ns: int


class Response(msgspec.Struct, tag="response", array_like=True, gc=False):
    """A decoupled model's response to one request."""

    key: int
    response: WireResponse


class Call(msgspec.Struct, tag="call", array_like=True, gc=False):
    """A model asks another one."""

    key: int
    request: WireRequest


class CancelCall(msgspec.Struct, tag="cancel_call", array_like=True, frozen=True):
    key: int


class Control(msgspec.Struct, tag="control", array_like=True, frozen=True, kw_only=True):
    """A question to the repository: `load`, `unload` or `is_ready`. Answered with `ControlReply`."""

    key: int
    action: str
    model: str
    version: str = ""
    config_json: str | None = None
    files: dict[str, bytes] = {}
    unload_dependents: bool = False


class LogLine(msgspec.Struct, tag="log", array_like=True, frozen=True):
    """`level` as in the logging module."""

    level: int
    message: str


class MetricUpdate(msgspec.Struct, tag="metric", array_like=True, frozen=True, kw_only=True):
    """A model's own metric changes: `action` is `declare`, `increment`, `set`, `observe` or `value`, which is answered with `ControlReply`."""

    action: str
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: dict[str, str]
    buckets: list[float] = []
    amount: float = 0.0
    key: int = 0


FromWorker = Progress | Loaded | LoadFailed | BatchDone | Response | Call | CancelCall | Control | LogLine | MetricUpdate | Release

_encoder = msgspec.msgpack.Encoder()
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
from_worker_decoder = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: ToWorker | FromWorker) -> bytearray:
    """The whole frame. Raises `ValueError` for a message of 4 GiB or more."""
    frame = bytearray(HEADER_SIZE)
    _encoder.encode_into(message, frame, HEADER_SIZE)
    size = len(frame) - HEADER_SIZE
    if size > MAX_FRAME_SIZE:
        raise ValueError(f"a message of {size} bytes is too long")
    frame[:HEADER_SIZE] = size.to_bytes(HEADER_SIZE, "little")
    return frame

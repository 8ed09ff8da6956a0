"""Calls of other models and questions to the repository, from any thread of a Python model's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping

from trivium.protocol.worker_messages import Call, CallResponse, CancelCall, Control, ControlReply, FromWorker, WireRequest, WireResponse
from trivium.worker.link import Exchange, Link
from trivium.worker.pb.errors import TritonModelException
from trivium.worker.pb.responses import InferenceResponse

_link: Link | None = None


def set_link(link: Link) -> None:
    """Once, before the model's code is imported: a Python model has its process to itself."""
    global _link
    assert _link is None
    _link = link


def current_link() -> Link:
    if _link is None:
        raise TritonModelException("this works only inside of a model that the server runs")
    return _link


def tell(message: FromWorker) -> None:
    current_link().send(message)


class OngoingCall:
    """Responses of one call, in order; the last is final."""

    def __init__(self, link: Link, exchange: Exchange) -> None:
        self.link = link
        self.has_ended = False
        self._exchange = exchange

    def next(self) -> WireResponse:
        assert not self.has_ended
        try:
            reply = self._exchange.get()
        except ConnectionError:
            self.has_ended = True
            raise
        assert isinstance(reply, CallResponse)
        if reply.response.is_final:
            self.has_ended = True
            self._exchange.close()
        return reply.response

    def cancel(self) -> None:
        if not self.has_ended:
            self.link.send(CancelCall(self._exchange.key))


def begin(request: WireRequest, *, in_background: bool = False) -> OngoingCall:
    link = current_link()
    if in_background:
        link.read_in_background()
    exchange = link.open_exchange()
    link.send(Call(exchange.key, request))
    return OngoingCall(link, exchange)


def single(call: OngoingCall) -> InferenceResponse:
    """The one response; the empty end of a decoupled model doesn't count."""
    found: list[WireResponse] = []
    while not call.has_ended:
        response = call.next()
        if not response.is_null:
            found.append(response)
    if len(found) != 1:
        text = f"expected exactly 1 response, got {len(found)}: call exec(decoupled=True) for a decoupled model"
        return InferenceResponse(error=text)
    return InferenceResponse._from_wire(found[0], call.link)


async def single_async(call: OngoingCall) -> InferenceResponse:
    try:
        return await asyncio.to_thread(single, call)
    except asyncio.CancelledError:
        call.cancel()
        raise


class ResponseIterator:
    """Responses of a call that was made with `decoupled=True`: for `for`, and for `async for`. Iterating again begins anew with what came."""

    def __init__(self, call: OngoingCall) -> None:
        self._call = call
        self._seen: list[InferenceResponse] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[InferenceResponse]:
        position = 0
        while (response := self._at(position)) is not None:
            position += 1
            yield response

    async def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        position = 0
        while (response := await asyncio.to_thread(self._at, position)) is not None:
            position += 1
            yield response

    def cancel(self) -> None:
        """Nobody wants the rest."""
        self._call.cancel()

    def _at(self, position: int) -> InferenceResponse | None:
        with self._lock:
            while len(self._seen) <= position:
                if self._call.has_ended:
                    return None
                # The end that carries nothing is handed on as a response without tensors, as in Triton.
                self._seen.append(InferenceResponse._from_wire(self._call.next(), self._call.link))
            return self._seen[position]


# -- the repository ---------------------------------------------------------------------------------------------------------------


def load_model(model_name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model and wait for it. Raises `TritonModelException`."""
    _ask("load", model_name, config_json=config, files=dict(files or {}))


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    _ask("unload", model_name, unload_dependents=unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    return _ask("is_ready", model_name, version=model_version) != 0.0


def _ask(
    action: str,
    model: str,
    *,
    version: str = "",
    config_json: str | None = None,
    files: dict[str, bytes] | None = None,
    unload_dependents: bool = False,
) -> float:
    exchange = current_link().open_exchange()
    message = Control(
        key=exchange.key,
        action=action,
        model=model,
        version=version,
        config_json=config_json,
        files=files or {},
        unload_dependents=unload_dependents,
    )
    tell(message)
    return wait_for_reply(exchange)


def wait_for_reply(exchange: Exchange) -> float:
    try:
        reply = exchange.get()
    finally:
        exchange.close()
    assert isinstance(reply, ControlReply)
    if reply.slug:
        raise TritonModelException(reply.message)
    return reply.value

"""Requests whose grammar is still being compiled wait here, before the scheduler, so that nobody waits with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from typing import NamedTuple

from trivium.engine.grammar_compiler import Compiled, GrammarCompiler
from trivium.protocol.messages import AddRequest


class Held(NamedTuple):
    client: bytes
    message: AddRequest
    compiled: Compiled


class GrammarGate:
    """Owned by the engine's loop. Compiled grammars are kept as long as their requests live: a row that starts late, or again, finds its own."""

    def __init__(self, compiler: GrammarCompiler, wake: Callable[[], None], tell_others: Callable[[str], None] | None = None) -> None:
        """`wake` is called from the compiler's thread: a grammar is ready. `tell_others`: the other ranks must compile this one, too."""
        self._compiler = compiler
        self._wake = wake
        self._tell_others = tell_others
        self._held: dict[str, Held] = {}
        self._in_use: dict[str, Compiled] = {}
        """By request."""

    @property
    def waiting(self) -> KeysView[str]:
        """Ids of the requests that wait here."""
        return self._held.keys()

    def hold(self, client: bytes, message: AddRequest) -> bool:
        """Whether the request has to wait. Raises `InvalidRequest` for a grammar that is known not to compile."""
        if not message.grammar:
            return False
        compiled = self._compiler.prepare(message.grammar)
        if compiled.done():
            compiled.result()
            self._in_use[message.request_id] = compiled
            return False
        self._held[message.request_id] = Held(client, message, compiled)
        if self._tell_others is not None:
            self._tell_others(message.grammar)
        compiled.add_done_callback(lambda _: self._wake())
        return True

    def take_ready(self) -> list[Held]:
        """Those that need not wait any longer, in the order they came. Some of the futures may hold an error."""
        ready = [held for held in self._held.values() if held.compiled.done()]
        for held in ready:
            request_id = held.message.request_id
            del self._held[request_id]
            self._in_use[request_id] = held.compiled
        return ready

    def drop(self, request_ids: Iterable[str]) -> list[Held]:
        """Those of them that wait here; they are forgotten."""
        return [self._held.pop(request_id) for request_id in request_ids if request_id in self._held]

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._in_use.pop(request_id, None)

"""What an answer must look like: from the forms of the APIs to llguidance's, and whether it can be compiled at all.

llguidance instead of xgrammar, by measurement: docs/decisions.md, `benchmarks/grammar.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

from trivium.errors import InvalidRequest, UnsupportedFeature
from trivium.text.json_schema import prepare_schema
from trivium.text.tokenizer import Tokenizer
from trivium.text.worker_process import WorkerProcess
from trivium.types import StructuredOutputsParams

MAX_CHARS: Final = 1 << 18
"""Of a schema, pattern, grammar or list of choices."""
MAX_CHOICES: Final = 4096
LANES: Final = (0.1, 1.5)
"""Seconds of processor time. Ordinary grammars take milliseconds; what does not end within the first bound is tried again where only such wait."""
MAX_WORKER_BYTES: Final = 2 << 30
MAX_REMEMBERED: Final = 4096
MAX_REMEMBERED_CHARS: Final = 1 << 24
WHITESPACE: Final = r"[ \t\n\r]{0,32}"
"""Between the tokens of JSON. Without a bound, a model that is unsure goes on with blanks for ever."""

_WORKER_FILE: Final = Path(__file__).with_name("grammar_worker.py")


def to_llguidance(wanted: StructuredOutputsParams) -> str:
    """The grammar as JSON text that `LLMatcher` takes, or {"gbnf": …}, which the worker turns into it.

    Raises `InvalidRequest` for what is too large or no schema at all.
    """
    try:
        return json.dumps(_converted(wanted))
    except RecursionError:
        raise InvalidRequest("The grammar is too deeply nested.", param=wanted.origin) from None


def _converted(wanted: StructuredOutputsParams) -> dict[str, Any]:
    if wanted.regex is not None:
        return _lark(f"start: /{_slashed(_bounded(wanted.regex, wanted))}/")
    if wanted.choice is not None:
        return _lark(_choices(wanted.choice, wanted))
    if wanted.grammar is not None:
        text = _bounded(wanted.grammar, wanted)
        return {"gbnf": text} if "::=" in text else _lark(text)
    return {"grammars": [{"json_schema": _schema(wanted)}]}


def _lark(text: str) -> dict[str, Any]:
    return {"grammars": [{"lark_grammar": text}]}


def _slashed(pattern: str) -> str:
    """A pattern between slashes, where a slash ends it unless it is escaped."""
    found: list[str] = []
    is_escaped = False
    for char in pattern:
        found.append("\\/" if char == "/" and not is_escaped else {"\n": "\\n", "\r": "\\r"}.get(char, char))
        is_escaped = char == "\\" and not is_escaped
    return "".join(found)


def _choices(choices: list[str], wanted: StructuredOutputsParams) -> str:
    if not choices or len(choices) > MAX_CHOICES:
        raise InvalidRequest(f"A list of choices must have from 1 to {MAX_CHOICES} texts, got {len(choices)}.", param=wanted.origin)
    if not all(choices):
        raise InvalidRequest("A choice must not be empty.", param=wanted.origin)
    _bounded("".join(choices), wanted)
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choices)


def _schema(wanted: StructuredOutputsParams) -> dict[str, Any]:
    schema: Any = {"type": "object"} if wanted.json is None else wanted.json
    if isinstance(schema, str):
        try:
            schema = json.loads(_bounded(schema, wanted))
        except ValueError as error:
            raise InvalidRequest(f"The JSON schema is no JSON: {error}.", param=wanted.origin) from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON schema must be an object.", param=wanted.origin)
    _bounded(json.dumps(schema), wanted)
    options: dict[str, Any] = {"whitespace_flexible": False}
    if not wanted.disable_any_whitespace:
        pattern = WHITESPACE if wanted.whitespace_pattern is None else _bounded(wanted.whitespace_pattern, wanted)
        options = {"whitespace_flexible": True, "whitespace_pattern": pattern}
    return {**prepare_schema(cast("dict[str, Any]", schema), param=wanted.origin), "x-guidance": options}


def _bounded(text: str, wanted: StructuredOutputsParams) -> str:
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"The grammar has {len(text)} characters; at most {MAX_CHARS} are allowed.", param=wanted.origin)
    return text


def check_tokenizer(tokenizer: Tokenizer, wanted: StructuredOutputsParams) -> None:
    """Raises `UnsupportedFeature` for a tokenizer whose tokens' text depends on their neighbours: no mask could be right."""
    if tokenizer.byte_decoder is None:
        raise UnsupportedFeature("Structured outputs need a tokenizer whose tokens stand for bytes, which this model's do not.", param=wanted.origin)


class _Lane:
    """A process, and the thread that waits for it."""

    def __init__(self, cpu_seconds: float) -> None:
        self.process = WorkerProcess(_WORKER_FILE, [str(cpu_seconds), str(MAX_WORKER_BYTES)])
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)
        self.process.close()


class GrammarChecker:
    """Tries grammars in processes that can be lost, each once, the quick ones apart from the slow ones. Thread-safe."""

    def __init__(self, lanes: tuple[float, ...] = LANES) -> None:
        self._lanes = [_Lane(seconds) for seconds in lanes]
        self._known: OrderedDict[bytes, tuple[int, dict[str, str]]] = OrderedDict()
        """Digest of a grammar to the last lane it was tried in, and the answer."""
        self._num_chars = 0
        """Of all answers in `_known`."""
        self._lock = threading.Lock()
        self._is_closed = False

    async def check(self, wanted: StructuredOutputsParams) -> str:
        """The grammar for the engine. Raises `InvalidRequest` for one that can't be compiled, or not within bounds."""
        grammar = await asyncio.to_thread(to_llguidance, wanted)
        answer = self._recall(grammar, len(self._lanes) - 1)
        for place, lane in enumerate(self._lanes):
            answer = answer or await asyncio.wrap_future(lane.thread.submit(self._ask, place, grammar))
        return _conclude(wanted, grammar, answer)

    def check_blocking(self, wanted: StructuredOutputsParams) -> str:
        """`check` for callers without an event loop."""
        grammar = to_llguidance(wanted)
        answer = self._recall(grammar, len(self._lanes) - 1)
        for place, lane in enumerate(self._lanes):
            answer = answer or lane.thread.submit(self._ask, place, grammar).result()
        return _conclude(wanted, grammar, answer)

    def close(self) -> None:
        """Does not wait for grammars that are being tried."""
        self._is_closed = True
        for lane in self._lanes:
            lane.close()

    def _ask(self, place: int, grammar: str) -> dict[str, str] | None:
        """In a lane's thread: the answer, or None where the next lane should be asked. Those who waited for the same question share one answer."""
        found = self._recall(grammar, place)
        if found is None:
            process = self._lanes[place].process
            found = process.ask({"grammar": grammar})
            self._remember(grammar, place, found)
            if self._is_closed:
                return found
            if _is_limit(found):
                process.start()  # the next one need not wait for it
        return None if _is_limit(found) and place + 1 < len(self._lanes) else found

    def _recall(self, grammar: str, place: int) -> dict[str, str] | None:
        """What is known, from lane `place` or a later one if it was too much for it."""
        with self._lock:
            tried, answer = self._known.get(_digest(grammar), (-1, None))
        return answer if answer is not None and (tried >= place or not _is_limit(answer)) else None

    def _remember(self, grammar: str, place: int, answer: dict[str, str]) -> None:
        digest = _digest(grammar)
        with self._lock:
            _, old = self._known.pop(digest, (0, {}))
            self._known[digest] = place, answer
            self._num_chars += _num_chars(answer) - _num_chars(old)
            while len(self._known) > MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
                _, (_, forgotten) = self._known.popitem(last=False)
                self._num_chars -= _num_chars(forgotten)


def _digest(grammar: str) -> bytes:
    return hashlib.blake2b(grammar.encode(errors="surrogatepass"), digest_size=16).digest()


def _num_chars(answer: dict[str, str]) -> int:
    return sum(map(len, answer.values()))


def _is_limit(answer: dict[str, str]) -> bool:
    return answer.get("error") == "limit"


def _conclude(wanted: StructuredOutputsParams, grammar: str, answer: dict[str, str] | None) -> str:
    assert answer is not None
    if "error" not in answer:
        return answer["grammar"] or grammar
    if _is_limit(answer):
        raise InvalidRequest(f"The grammar takes too much time or memory ({answer['message']}).", param=wanted.origin)
    raise InvalidRequest(f"grammar is not valid: {answer['message']}", param=wanted.origin)

"""`GrammarCompiler`: from llguidance's grammars to its matchers, in a thread. Knows nothing of torch."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final
from weakref import WeakValueDictionary

from trivium.errors import InvalidRequest
from trivium.text import Tokenizer

MAX_CACHED: Final = 64
"""Compiled grammars that are kept, though no request has them, for the next one that asks for the same."""

MAX_CACHED_S: Final = 4.0
"""Processor time that compiling those took, which grows with the memory they hold: ordinary ones take a millisecond, the worst 50 MB."""
MAX_LEXER_STATES: Final = 50_000
"""Of one request, a kilobyte each."""

Compiled = Future[Any]
"""An `LLMatcher` at its start, or what is wrong with the grammar (`InvalidRequest`)."""


class GrammarCompiler:
    """Compiles for one vocabulary. `load` is called once, in the compiler's thread, when the first grammar comes or `warm` is called. Thread-safe."""

    def __init__(self, load: Callable[[], Tokenizer], vocab_size: int) -> None:
        self._load = load
        self.end_token_id = vocab_size
        """Stands for "may end here" in masks: one past the vocabulary, so that it is nobody's token."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer: Any = None
        self._alive: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        """All that somebody holds, here or elsewhere."""
        self._recent: OrderedDict[str, Compiled] = OrderedDict()
        self._seconds: dict[str, float] = {}
        """What compiling the recent ones took."""
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Make the vocabulary's trie (tenths of a second) before anybody waits for it."""
        self._thread.submit(self._vocabulary)

    def prepare(self, grammar: str) -> Compiled:
        """Begin to compile. As long as the future is held, nobody compiles this grammar again."""
        with self._lock:
            found = self._alive.get(grammar)
            if found is None:
                found = self._alive[grammar] = self._thread.submit(self._compile, grammar)
            self._recent[grammar] = found
            self._recent.move_to_end(grammar)
            while len(self._recent) > MAX_CACHED or sum(self._seconds.values()) > MAX_CACHED_S:
                forgotten, _ = self._recent.popitem(last=False)
                self._seconds.pop(forgotten, None)
        return found

    def matcher(self, grammar: str) -> Any:
        """An `LLMatcher` of one's own. Waits until it is compiled; raises `InvalidRequest`."""
        return self.prepare(grammar).result().deep_copy()

    def _compile(self, grammar: str) -> Any:
        self._vocabulary()
        begin = time.thread_time()
        try:
            return self.compile(grammar)
        finally:
            with self._lock:
                if grammar in self._recent:
                    self._seconds[grammar] = time.thread_time() - begin

    def compile(self, grammar: str) -> Any:
        """An `LLMatcher` that has made its first mask already: that is the slowest one. Raises `InvalidRequest`."""
        import llguidance

        guidance: Any = llguidance
        limits = guidance.LLParserLimits(verbose_errors=False, max_lexer_states=MAX_LEXER_STATES)
        matcher = guidance.LLMatcher(self._vocabulary(), grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidRequest(f"grammar is not valid: {matcher.get_error().splitlines()[0]}", param="structured_outputs")
        return matcher

    def _vocabulary(self) -> Any:
        """The vocabulary as llguidance wants it. Ids that the tokenizer doesn't know, and the last one, stand for nothing."""
        if self._tokenizer is None:
            import llguidance

            guidance: Any = llguidance
            wrapper = guidance.TokenizerWrapper(_Vocabulary(self._load(), self.end_token_id))
            self._tokenizer = guidance.LLTokenizer(wrapper, n_vocab=self.end_token_id + 1)
        return self._tokenizer


class _Vocabulary:
    """What `TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, end_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_token_id
        known = [tokenizer.token_bytes(token_id) for token_id in range(min(tokenizer.vocab_size, end_token_id))]
        self.tokens = [*known, *[b""] * (end_token_id - len(known)), b"<|end of grammar|>"]
        self.special_token_ids = [*sorted(token_id for token_id in tokenizer.special_ids if token_id < end_token_id), end_token_id]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

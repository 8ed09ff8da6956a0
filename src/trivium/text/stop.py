"""`StopStringMatcher`: finds stop strings in text that arrives in pieces, and holds back only what may still become one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache


class StopStringMatcher:
    """Feeds text through one Knuth-Morris-Pratt automaton per stop string, so the result does not depend on how the text is cut.

    The match is the one that is complete first; of those that end at the same character, the longest. Text before the match is
    released, later text never. Held back is at most the longest proper prefix of a stop string that the text ends with, and nothing where
    the stop string is part of the output anyway.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        self._patterns = [_Pattern(text) for text in dict.fromkeys(stop)]
        self._first_chars = frozenset(pattern.text[0] for pattern in self._patterns)
        self._include = include_in_output
        self._held = ""
        self._is_partial = False
        """Some pattern has begun."""
        self.matched: str | None = None
        """The stop string that was found."""

    def push(self, text: str, *, check: bool = True) -> str:
        """Text that is final. With `check=False` (before `min_tokens`) it is released as it is and can't be part of a match."""
        if self.matched is not None:
            return ""
        if not check:
            return self.flush() + text
        if not self._is_partial and self._first_chars.isdisjoint(text):
            return text
        return self._scan(text)

    def _scan(self, text: str) -> str:
        for position, char in enumerate(text, 1):
            complete = [pattern.text for pattern in self._patterns if pattern.advance(char)]
            if complete:
                return self._finish(self._held + text[:position], max(complete, key=len))
        buffer = self._held + text
        longest = max(pattern.state for pattern in self._patterns)
        self._is_partial = longest > 0
        released = len(buffer) if self._include else len(buffer) - longest
        self._held = buffer[released:]
        return buffer[:released]

    def _finish(self, text: str, matched: str) -> str:
        self.matched = matched
        self._held = ""
        return text if self._include else text[: len(text) - len(matched)]

    def flush(self) -> str:
        """The held text, once it is known that nothing follows."""
        held, self._held = self._held, ""
        self._is_partial = False
        for pattern in self._patterns:
            pattern.state = 0
        return held


class _Pattern:
    """`state` is how many characters of `text` the input ends with."""

    __slots__ = ("_fallback", "state", "text")

    def __init__(self, text: str) -> None:
        assert text
        self.text = text
        self.state = 0
        self._fallback = _fallbacks(text)

    def advance(self, char: str) -> bool:
        """True if the pattern is complete with `char`; then it must not be used any more."""
        state = self.state
        while state and self.text[state] != char:
            state = self._fallback[state]
        self.state = state + (self.text[state] == char)
        return self.state == len(self.text)


@lru_cache(maxsize=64)
def _fallbacks(text: str) -> Sequence[int]:
    """For each prefix length, the length of the longest proper prefix that is also its suffix. Cached: the choices of a request share it."""
    table = array("i", (0, 0))
    for char in text[1:-1]:
        length = table[-1]
        while length and text[length] != char:
            length = table[length]
        table.append(length + (text[length] == char))
    return table

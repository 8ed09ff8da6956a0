"""Stop strings: found anywhere, cut at their start, held back no longer than needed (vLLM's bugs B1 to B4)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trivium.text import StopStringMatcher
from trivium.text import stop as stop_module


def run(stop: list[str], pieces: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopStringMatcher(stop, include_in_output=include)
    released = [matcher.push(piece) for piece in pieces]
    return [*released, matcher.flush()], matcher.matched


def reference(stop: list[str], text: str) -> tuple[int, str] | None:
    """End and text of the match that is complete first; the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [each for each in stop if text[:end].endswith(each)]
        if found:
            return end, max(found, key=len)
    return None


@pytest.mark.parametrize(
    ("stop", "pieces", "expected"),
    [
        (["END"], ["one END two"], "one "),
        (["END"], ["one E", "N", "D two"], "one "),
        (["a b"], ["xa", " ", "b"], "x"),
        (["\n\n"], ["line\n", "\nmore"], "line"),
        (["aab"], ["aaab"], "a"),
        (["停"], ["请停止"], "请"),
        (["👩‍👩"], ["family 👩", "‍👩"], "family "),
        (["world", "lo"], ["hello world"], "hel"),
        (["b", "abc"], ["abc"], "a"),
        (["abc", "bc"], ["xabc"], "x"),
    ],
)
def test_a_match_is_found_wherever_it_lies_and_cut_at_its_start(stop, pieces, expected):
    released, matched = run(stop, pieces)
    assert "".join(released) == expected
    assert matched in stop


def test_the_stop_string_can_be_included_but_nothing_after_it():
    released, matched = run(["END"], ["one E", "ND two"], include=True)
    assert ("".join(released), matched) == ("one END", "END")


def test_only_what_may_still_become_a_stop_string_is_held_back():
    matcher = StopStringMatcher(["<end>"])
    assert matcher.push("a <") == "a "
    assert matcher.push("e") == ""
    assert matcher.push("lse>") == "<else>"
    assert matcher.push("text <en") == "text "
    assert matcher.flush() == "<en"


def test_held_text_comes_out_at_the_end():
    """B3."""
    released, matched = run(["stop!"], ["please sto", "p"])
    assert released == ["please ", "", "stop"]
    assert matched is None


def test_nothing_comes_after_a_match():
    matcher = StopStringMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_the_choices_of_a_request_share_what_is_computed_of_a_stop_string():
    stop_module._fallbacks.cache_clear()
    matchers = [StopStringMatcher(["ab" * 100, "c"]) for _ in range(16)]
    assert stop_module._fallbacks.cache_info().misses == 2
    assert "".join(matchers[3].push(piece) for piece in ["x" + "ab" * 150, "c"]) == "x"
    assert matchers[4].push("xc") == "x"


def test_without_stop_strings_all_text_passes():
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_text_that_is_not_checked_can_not_be_part_of_a_match():
    """B4: up to `min_tokens` nothing is searched, and later matches lie wholly behind."""
    matcher = StopStringMatcher(["abc"])
    assert matcher.push("abc ab", check=False) == "abc ab"
    assert matcher.push("c d") == "c d"
    assert matcher.push("ab") == ""
    assert matcher.push("", check=False) == "ab"
    assert matcher.push("c") == "c"
    assert matcher.matched is None
    assert matcher.push("abc") == ""
    assert matcher.matched == "abc"


ALPHABET = st.text("ab你", max_size=12)
STOPS = st.lists(st.text("ab你", min_size=1, max_size=5), min_size=1, max_size=4)


@given(STOPS, st.lists(ALPHABET, max_size=8), st.booleans())
@example(["aab"], ["aa", "ab"], False)
def test_streamed_text_is_the_text_cut_at_the_first_match_however_it_arrives(stop, pieces, include):
    text = "".join(pieces)
    released, matched = run(stop, pieces, include=include)
    found = reference(stop, text)
    if found is None:
        assert ("".join(released), matched) == (text, None)
    else:
        end, which = found
        assert ("".join(released), matched) == (text[: end if include else end - len(which)], which)


@given(STOPS, st.lists(ALPHABET, max_size=8))
def test_held_back_is_the_shortest_text_that_may_still_become_a_stop_string(stop, pieces):
    matcher = StopStringMatcher(stop)
    released = ""
    seen = ""
    for piece in pieces:
        released += matcher.push(piece)
        seen += piece
        if matcher.matched is not None:
            return
        prefixes = {each[:n] for each in stop for n in range(1, len(each))}
        held = max((n for n in range(len(seen) + 1) if seen[len(seen) - n :] in prefixes), default=0)
        assert released == seen[: len(seen) - held]

"""Grammar libraries side by side: what compiling and masking cost, and which JSON schemas they honour.

    python benchmarks/grammar.py FOLDER [--rounds 5] [--cases] [--step ROWS ...]

FOLDER has a tokenizer.json. xgrammar is left out where it isn't installed (it wants torch, which this process then loads). Times are of one
thread's processor time. For each case of `grammar_cases`: `refused` means the library says it can't, `ok` that it takes every valid answer and no
invalid one, else what it gets wrong, which a server could only find out from its users.

`--step` measures instead, on the clock, what masks of so many rows that write JSON cost the host a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from grammar_cases import CASES, SchemaCase

from trivium.engine.grammar import GrammarTable
from trivium.engine.grammar_compiler import GrammarCompiler
from trivium.engine.staging import Staging
from trivium.scheduling.step import NewRow
from trivium.text import Tokenizer
from trivium.text.grammar import to_llguidance
from trivium.types import SamplingParams, StructuredOutputsParams


class Refused(Exception):
    """The library says that it can't honour a schema."""


class Matcher(Protocol):
    def mask(self) -> None: ...

    def take(self, token_id: int) -> bool: ...

    def may_end(self) -> bool: ...


class Library(Protocol):
    name: str

    def compile(self, schema: Any) -> Callable[[], Matcher]:
        """Makes matchers at their start. Raises `Refused`."""
        ...


class LLGuidance:
    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._compiler = GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size)
        self._compiler.matcher(to_llguidance(StructuredOutputsParams(json_object=True)))

    def compile(self, schema: Any) -> Callable[[], Matcher]:
        try:
            base = self._compiler.compile(to_llguidance(StructuredOutputsParams(json=schema)))
        except ValueError as error:
            raise Refused(str(error)) from None
        return lambda: _LLMatcher(base.deep_copy(), self._compiler.end_token_id)


class _LLMatcher:
    def __init__(self, matcher: Any, end: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(end // 32 + 1, dtype=np.int32)

    def mask(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def take(self, token_id: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token_id]))

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class XGrammar:
    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import xgrammar  # pyright: ignore[reportMissingImports]

        vocabulary = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[tokenizer.eos_token_id])
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)

    def compile(self, schema: Any) -> Callable[[], Matcher]:
        try:
            compiled = self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except RuntimeError as error:
            raise Refused(str(error)) from None
        return lambda: _XMatcher(self._xgrammar.GrammarMatcher(compiled), self._mask)


class _XMatcher:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)

    def take(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())


def accepts(matcher: Matcher, token_ids: list[int]) -> bool:
    return all(map(matcher.take, token_ids)) and matcher.may_end()


def verdict(make: Callable[[], Matcher], case: SchemaCase, encode: Callable[[str], list[int]]) -> str:
    lost = [text for text in case.valid if not accepts(make(), encode(text))]
    let_through = [text for text in case.invalid if accepts(make(), encode(text))]
    return "; ".join(filter(None, (f"can't write {lost}" if lost else "", f"writes {let_through}" if let_through else ""))) or "ok"


def mask_times(make: Callable[[], Matcher], token_ids: list[int]) -> list[float]:
    """Microseconds to take a token and make the mask after it, from a fresh matcher; the first mask included."""
    matcher = make()
    times: list[float] = []
    for token_id in [None, *token_ids]:
        begin = time.thread_time()
        if token_id is not None and not matcher.take(token_id):
            break
        matcher.mask()
        times.append((time.thread_time() - begin) * 1e6)
    return times


def timed_compile(library: Library, schema: Any, rounds: int) -> tuple[Callable[[], Matcher], float]:
    """(makes matchers, median of the milliseconds)"""
    times: list[float] = []
    for _ in range(rounds - 1):
        begin = time.process_time()
        library.compile(schema)
        times.append((time.process_time() - begin) * 1e3)
    begin = time.process_time()
    make = library.compile(schema)
    return make, statistics.median([*times, (time.process_time() - begin) * 1e3])


def run(library: Library, encode: Callable[[str], list[int]], rounds: int, *, shows_cases: bool) -> None:
    compile_ms: dict[str, float] = {}
    masks: list[float] = []
    verdicts: dict[str, str] = {}
    for case in CASES:
        try:
            make, compile_ms[case.name] = timed_compile(library, case.schema, rounds)
        except Refused as error:
            verdicts[case.name] = f"refused: {str(error).splitlines()[0][:90]}"
            continue
        verdicts[case.name] = verdict(make, case, encode)
        for text in case.valid:
            for _ in range(rounds):
                masks += mask_times(make, encode(text))
    if shows_cases:
        for name, found in verdicts.items():
            print(f"    {name:24} {compile_ms.get(name, 0.0):8.2f} ms  {found}")
    masks.sort()
    values = sorted(compile_ms.values())
    slowest = max(compile_ms, key=lambda name: compile_ms[name])
    counts = [sum(found.startswith(start) for found in verdicts.values()) for start in ("ok", "refused")]
    print(f"{library.name}: {counts[0]} of {len(CASES)} honoured, {counts[1]} refused, {len(CASES) - sum(counts)} wrong")
    print(f"  compile ms: median {statistics.median(values):.2f}, largest {values[-1]:.1f} ({slowest})")
    quantiles = ", ".join(
        f"{name} {masks[min(len(masks) - 1, int(len(masks) * part))]:.1f}" for name, part in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    )
    print(f"  mask us a token: mean {statistics.mean(masks):.1f}, {quantiles}, largest {masks[-1]:.0f} ({len(masks)} masks)")


def step_times(tokenizer: Tokenizer, num_rows: int, num_steps: int = 60) -> list[float]:
    """Milliseconds of the host's work for one step: tokens of the one before taken in, masks made. Rows are at different places of an answer."""
    case = next(case for case in CASES if case.name == "nested order")
    compiler = GrammarCompiler(lambda: tokenizer, tokenizer.vocab_size)
    table = GrammarTable(compiler, tokenizer.vocab_size, Staging(torch.device("cpu")))
    grammar = to_llguidance(StructuredOutputsParams(json=case.schema))
    answer = tokenizer.encode(case.valid[0], add_special_tokens=False)
    rows = list(range(num_rows))
    for row in rows:
        seen = answer[: row % (len(answer) // 2)]
        table.add_row(
            NewRow(
                row=row,
                request_id=str(row),
                params=SamplingParams(),
                prompt_token_ids=[0],
                output_token_ids=seen,
                stop_token_ids=[0],
                bad_words_token_ids=[],
                grammar=grammar,
            )
        )
    times: list[float] = []
    for step in range(min(num_steps, len(answer) // 2)):
        begin = time.monotonic()
        table.make_masks(rows)
        times.append((time.monotonic() - begin) * 1e3)
        table.record(rows, torch.tensor([answer[row % (len(answer) // 2) + step] for row in rows]))
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", action="store_true", help="print each case")
    parser.add_argument("--step", type=int, nargs="+", metavar="ROWS", help="measure the host's work of a step instead")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_folder(options.folder)
    print(f"vocabulary of {tokenizer.vocab_size}")
    for num_rows in options.step or ():
        times = step_times(tokenizer, num_rows)
        print(f"{num_rows} rows: median {statistics.median(times):.3f} ms a step, largest {times[-1]:.2f}")
    if options.step:
        return
    for make in (LLGuidance, XGrammar):
        begin = time.process_time()
        try:
            library = make(tokenizer)
        except ImportError as error:
            print(f"{make.name}: left out ({error})")
            continue
        print(f"{library.name}: vocabulary taken over in {(time.process_time() - begin) * 1e3:.0f} ms")
        run(library, lambda text: tokenizer.encode(text, add_special_tokens=False), options.rounds, shows_cases=options.cases)


if __name__ == "__main__":
    main()

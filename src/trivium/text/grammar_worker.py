"""The process grammars are tried in: reads one JSON request a line from stdin, answers with one JSON line on stdout.

A grammar is a program that came with a request: here it is compiled and asked for its first tokens, with bounded memory and a small stack, and when
it uses up its processor time the kernel ends the process. Run as a file, so that it starts without the rest of the package; it must not import any
of it.

Request: {"grammar": …}, JSON text in llguidance's own form, or of {"gbnf": …}. Answer: {"grammar": …}, llguidance's form of GBNF and else empty, or
{"error": kind, "message": …}, kind being `invalid` or `limit`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

guidance: Any = llguidance
"""Its stubs leave too much unknown for strict checking."""
MAX_MESSAGE_CHARS = 500
MAX_MASK_S = 0.03
"""Processor time for the tokens that may come first. In the engine everybody in a batch waits for the slowest of them."""
STACK_BYTES = 1 << 20
"""Less than any thread has that works on a grammar in the engine, where a stack that overflows would end everybody's requests."""
NICENESS = 5
"""Steps on a CPU go first."""


def check(tokenizer: Any, text: str) -> dict[str, str]:
    grammar, converted = json.loads(text), ""
    if "gbnf" in grammar:
        try:
            lark = gbnf_to_lark(grammar["gbnf"])
        except Exception as error:  # its parser was written for grammars of its authors
            return _invalid(str(error) or type(error).__name__)
        text = converted = json.dumps({"grammars": [{"lark_grammar": lark}]})
    matcher = guidance.LLMatcher(tokenizer, text, log_level=0, limits=guidance.LLParserLimits(verbose_errors=False))
    begin = time.thread_time()
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        return _invalid(matcher.get_error())
    if time.thread_time() - begin > MAX_MASK_S:
        return {"error": "limit", "message": "its first token alone does"}
    return {"grammar": converted}


def _invalid(message: str) -> dict[str, str]:
    return {"error": "invalid", "message": message.strip().splitlines()[0][:MAX_MESSAGE_CHARS]}


def serve(requests: BinaryIO, answers: BinaryIO, *, cpu_seconds: float) -> None:
    """Until `requests` ends. Each request may take `cpu_seconds` of processor time; then SIGPROF, left at its default, ends the process."""
    tokenizer = guidance.LLTokenizer("byte")
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        answer = check(tokenizer, json.loads(line)["grammar"])
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main(arguments: list[str]) -> None:
    """Arguments: seconds of processor time, bytes of address space."""
    max_bytes = int(arguments[1])
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    threading.stack_size(STACK_BYTES)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    thread = threading.Thread(target=serve, args=(requests, answers), kwargs={"cpu_seconds": float(arguments[0])})
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])

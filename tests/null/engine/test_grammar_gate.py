"""Requests wait for their grammar before the scheduler, and nobody waits with them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from trivium.engine.core import EngineCore
from trivium.engine.executor import InlineExecutor, StepHandle
from trivium.engine.grammar_gate import GrammarGate
from trivium.engine.mailbox import ZmqMailbox
from trivium.errors import InvalidRequest
from trivium.protocol.messages import (
    Abort,
    AddRequest,
    FromEngine,
    Hello,
    Probe,
    ProbeReply,
    Progress,
    Shutdown,
    StepOutputs,
    ToEngine,
    TokenOutput,
)
from trivium.scheduling.limits import SchedulerLimits
from trivium.scheduling.scheduler import Scheduler
from trivium.scheduling.step import StepPlan, StepResult
from trivium.types import SamplingParams


class ManualCompiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}

    def prepare(self, grammar: str) -> Future[Any]:
        return self.futures.setdefault(grammar, Future())


class Handle:
    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan

    def result(self) -> StepResult:
        return StepResult(step_id=self.plan.step_id, token_ids=[50] * sum(self.plan.samples))


class Runner:
    """Samples token 50 everywhere."""

    def launch(self, plan: StepPlan) -> StepHandle:
        return Handle(plan)


class Mailbox:
    """An entry of the script is a batch of messages or something to do before the engine looks again; after the last one it is shut down."""

    def __init__(self, script: list[list[tuple[bytes, ToEngine]] | Callable[[], None]]) -> None:
        self.script = deque(script)
        self.sent: list[FromEngine] = []

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        if not self.script:
            return [(b"a", Shutdown())] if block else []
        entry = self.script.popleft()
        if isinstance(entry, list):
            return entry
        entry()
        return []

    def send(self, client: bytes, message: FromEngine) -> None:
        self.sent.append(message)

    def outputs(self) -> list[TokenOutput]:
        return [output for message in self.sent if isinstance(message, StepOutputs) for output in message.outputs]


def tokens_of(mailbox: Mailbox, name: str) -> list[int]:
    return [token for output in mailbox.outputs() if output.request_id == name for token in output.token_ids]


def request(name: str) -> AddRequest:
    return AddRequest(request_id=name, prompt_token_ids=[1, 2, 3], params=SamplingParams(max_tokens=3), max_tokens=3)


def with_grammar(name: str, grammar: str) -> AddRequest:
    added = request(name)
    added.grammar = grammar
    return added


def run(script: list[Any], compiler: ManualCompiler) -> tuple[Mailbox, list[str]]:
    """What was sent, and what the other ranks and the sleeping loop were told."""
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, num_blocks=32, block_size=8)
    mailbox = Mailbox([[(b"a", Hello())], *script])
    told: list[str] = []
    core = EngineCore(Scheduler(limits), InlineExecutor(Runner()), mailbox, pipeline_depth=1, greeting=Progress("", 0, 0))
    core.grammars = GrammarGate(compiler, lambda: told.append("wake"), lambda grammar: told.append(grammar))  # type: ignore[arg-type]
    core.run()
    assert not core.grammars.waiting
    assert not core.grammars._in_use
    return mailbox, told


def test_others_run_while_a_grammar_is_compiled() -> None:
    compiler = ManualCompiler()
    script: list[Any] = [[(b"a", with_grammar("slow", "g")), (b"a", request("plain")), (b"a", Probe(1))], *[[]] * 5]
    mailbox, _ = run([*script, lambda: compiler.futures["g"].set_result("matcher")], compiler)
    names = [output.request_id for output in mailbox.outputs() if output.token_ids]
    assert names == ["plain"] * 3 + ["slow"] * 3
    [probe] = [message for message in mailbox.sent if isinstance(message, ProbeReply)]
    assert probe.stats is not None
    assert probe.stats.num_waiting == 2, "the one that waits for its grammar counts"


def test_a_grammar_that_is_known_is_not_waited_for() -> None:
    compiler = ManualCompiler()
    compiler.prepare("g").set_result("matcher")
    mailbox, told = run([[(b"a", with_grammar("x", "g"))]], compiler)
    assert tokens_of(mailbox, "x") == [50] * 3
    assert told == []


def test_the_other_ranks_are_told_and_the_loop_is_woken() -> None:
    compiler = ManualCompiler()
    _, told = run([[(b"a", with_grammar("x", "g"))], lambda: compiler.futures["g"].set_result("matcher")], compiler)
    assert told == ["g", "wake"]


@pytest.mark.parametrize("is_known", [False, True])
def test_what_does_not_compile_is_refused_alone(is_known: bool) -> None:
    compiler = ManualCompiler()

    def fail() -> None:
        compiler.prepare("g").set_exception(InvalidRequest("grammar is not valid: no"))

    script: list[Any] = [[(b"a", with_grammar("bad", "g")), (b"a", request("good"))]]
    mailbox, _ = run([fail, *script] if is_known else [*script, fail], compiler)
    [end] = [output for output in mailbox.outputs() if output.request_id == "bad"]
    assert (end.finish_reason, end.error_slug, end.error_message) == ("error", "invalid_request", "grammar is not valid: no")
    assert tokens_of(mailbox, "good") == [50] * 3


def test_a_request_that_waits_for_its_grammar_can_be_aborted() -> None:
    compiler = ManualCompiler()
    script: list[Any] = [[(b"a", with_grammar("x", "g"))], [(b"a", Abort(["x", "unknown"]))], lambda: compiler.futures["g"].set_result("matcher")]
    mailbox, _ = run(script, compiler)
    [end] = [output for output in mailbox.outputs() if output.request_id == "x"]
    assert end.finish_reason == "abort"


def test_shutdown_ends_what_waits_for_a_grammar() -> None:
    mailbox, _ = run([[(b"a", with_grammar("x", "g"))]], ManualCompiler())
    assert [output.finish_reason for output in mailbox.outputs()] == ["abort"]


def test_a_blocked_mailbox_is_woken(tmp_path: Any) -> None:
    mailbox = ZmqMailbox(f"ipc://{tmp_path}/engine.sock")
    found: list[list[Any]] = []
    thread = threading.Thread(target=lambda: found.append(mailbox.receive(block=True)))
    thread.start()
    for _ in range(100_000):  # more than a pipe holds
        mailbox.wake()
    thread.join(10)
    assert found == [[]]
    assert mailbox.receive(block=False) == []
    mailbox.close()

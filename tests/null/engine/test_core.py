"""The engine's loop with a scripted runner: no torch, no socket."""

from __future__ import annotations

from collections import deque

import pytest

from trivium.engine.core import EngineCore
from trivium.engine.executor import BroadcastExecutor, InlineExecutor, StepHandle, ThreadExecutor
from trivium.protocol.messages import (
    Abort,
    AddRequest,
    EngineReady,
    FromEngine,
    Hello,
    Probe,
    ProbeReply,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToEngine,
    TokenOutput,
)
from trivium.scheduling.limits import SchedulerLimits
from trivium.scheduling.scheduler import Scheduler
from trivium.scheduling.step import StepPlan, StepResult
from trivium.types import SamplingParams

READY = EngineReady(vocab_size=100, max_model_len=64, max_num_seqs=4, num_blocks=31, block_size=8, device="test", dtype="float32")


class Handle:
    def __init__(self, runner: CountingRunner, plan: StepPlan) -> None:
        self.runner, self.plan = runner, plan

    def result(self) -> StepResult:
        self.runner.log.append(("result", self.plan.step_id))
        tokens = [50 + row for row, samples in zip(self.plan.rows, self.plan.samples, strict=True) if samples]
        return StepResult(step_id=self.plan.step_id, token_ids=tokens)


class CountingRunner:
    """Row r samples token 50 + r. Logs launches and reads in order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def launch(self, plan: StepPlan) -> StepHandle:
        self.log.append(("launch", plan.step_id))
        return Handle(self, plan)


class ScriptedMailbox:
    """Hands out one batch of messages per receive; shuts the loop down when the script is over and the engine would block."""

    def __init__(self, batches: list[list[tuple[bytes, ToEngine]]]) -> None:
        self.batches = deque(batches)
        self.sent: list[tuple[bytes, FromEngine]] = []
        self.num_blocking = 0

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        self.num_blocking += block
        if self.batches:
            return self.batches.popleft()
        return [(b"a", Shutdown())] if block else []

    def send(self, client: bytes, message: FromEngine) -> None:
        self.sent.append((client, message))

    def outputs(self, client: bytes | None = None) -> list[TokenOutput]:
        return [output for to, message in self.sent if isinstance(message, StepOutputs) and client in (None, to) for output in message.outputs]


def request(name: str, max_tokens: int = 3) -> AddRequest:
    return AddRequest(request_id=name, prompt_token_ids=[1, 2, 3], params=SamplingParams(max_tokens=max_tokens), max_tokens=max_tokens)


def empty_plan(step_id: int) -> StepPlan:
    columns = ("new_rows", "rows", "num_tokens", "num_computed", "num_fed", "token_ids", "samples", "block_starts", "new_blocks")
    return StepPlan(step_id=step_id, **{name: [] for name in columns})


def run(batches: list[list[tuple[bytes, ToEngine]]], *, depth: int = 1) -> tuple[ScriptedMailbox, CountingRunner, EngineCore]:
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, num_blocks=32, block_size=8)
    mailbox, runner = ScriptedMailbox(batches), CountingRunner()
    core = EngineCore(Scheduler(limits), InlineExecutor(runner), mailbox, pipeline_depth=depth, greeting=READY)
    core.run()
    return mailbox, runner, core


def tokens_of(mailbox: ScriptedMailbox, name: str) -> list[int]:
    return [token for output in mailbox.outputs() if output.request_id == name for token in output.token_ids]


@pytest.mark.parametrize("depth", [0, 1])
def test_every_token_is_delivered_once_and_the_last_output_says_why(depth: int) -> None:
    mailbox, _, core = run([[(b"a", Hello()), (b"a", request("x")), (b"a", request("y", 5))]], depth=depth)
    assert tokens_of(mailbox, "x") == [50] * 3
    assert tokens_of(mailbox, "y") == [51] * 5
    ends = [output.request_id for output in mailbox.outputs() if output.finish_reason]
    assert sorted(ends) == ["x", "y"]
    assert not core.scheduler.has_work


def test_depth_one_launches_a_step_before_it_reads_the_one_before() -> None:
    _, runner, _ = run([[(b"a", Hello()), (b"a", request("x"))]], depth=1)
    assert runner.log[:4] == [("launch", 0), ("launch", 1), ("result", 0), ("launch", 2)]


def test_depth_zero_reads_each_step_first() -> None:
    _, runner, _ = run([[(b"a", Hello()), (b"a", request("x"))]], depth=0)
    assert runner.log == [(kind, step) for step in range(3) for kind in ("launch", "result")]


def test_an_idle_engine_blocks_instead_of_spinning() -> None:
    mailbox, _, _ = run([[(b"a", Hello())], [(b"a", request("x"))], [], [], [], [(b"a", Probe(7))]])
    # Once for hello, once for the request, once for the probe that came after it, once for the shutdown.
    assert mailbox.num_blocking == 4


def test_going_idle_is_reported_so_that_gauges_end_at_zero() -> None:
    mailbox, _, _ = run([[(b"a", Hello()), (b"a", request("x"))]])
    last = [message for _, message in mailbox.sent if isinstance(message, StepOutputs)][-1]
    assert last.stats is not None
    assert (last.stats.num_running, last.stats.num_waiting, last.stats.num_free_blocks) == (0, 0, 31)


def test_hello_is_answered_with_the_greeting_and_a_probe_by_the_loop() -> None:
    mailbox, _, _ = run([[(b"a", Hello()), (b"a", Probe(3))]])
    assert mailbox.sent[0] == (b"a", READY)
    reply = mailbox.sent[1][1]
    assert isinstance(reply, ProbeReply)
    assert reply.nonce == 3


def test_two_clients_get_their_own_outputs_only() -> None:
    mailbox, _, _ = run([[(b"a", Hello()), (b"b", Hello()), (b"a", request("x")), (b"b", request("y"))]])
    assert {output.request_id for output in mailbox.outputs(b"a")} == {"x"}
    assert {output.request_id for output in mailbox.outputs(b"b")} == {"y"}


def test_an_impossible_request_is_answered_and_harms_nobody() -> None:
    bad = AddRequest(request_id="bad", prompt_token_ids=[1] * 64, params=SamplingParams(), max_tokens=1)
    mailbox, _, _ = run([[(b"a", Hello()), (b"a", bad), (b"a", request("x"))]])
    refused = [output for output in mailbox.outputs() if output.request_id == "bad"]
    assert [(output.finish_reason, output.error_slug) for output in refused] == [("error", "context_length_exceeded")]
    assert len(tokens_of(mailbox, "x")) == 3


def test_whatever_a_request_makes_go_wrong_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Scheduler.add

    def fail_for_one(self: Scheduler, message: AddRequest) -> None:
        if message.request_id == "bad":
            raise OverflowError("too large")
        add(self, message)

    monkeypatch.setattr(Scheduler, "add", fail_for_one)
    mailbox, _, _ = run([[(b"a", Hello()), (b"a", request("bad")), (b"a", request("x"))]])
    assert [output.error_slug for output in mailbox.outputs() if output.request_id == "bad"] == ["internal_error"]
    assert len(tokens_of(mailbox, "x")) == 3


def test_abort_ends_a_running_request_once() -> None:
    mailbox, _, core = run([[(b"a", Hello()), (b"a", request("x", 50))], [], [(b"a", Abort(["x", "unknown"]))]])
    reasons = [output.finish_reason for output in mailbox.outputs() if output.finish_reason]
    assert reasons == ["abort"]
    assert len(tokens_of(mailbox, "x")) < 50
    core.scheduler.check_integrity()


def test_shutdown_ends_what_runs() -> None:
    mailbox, _, core = run([[(b"a", Hello()), (b"a", request("x", 50))], [(b"a", Shutdown())]])
    assert [output.finish_reason for output in mailbox.outputs() if output.finish_reason] == ["abort"]
    assert not core.is_running


def test_reset_prefix_cache_forgets_what_a_second_request_would_hit() -> None:
    long = {"prompt_token_ids": list(range(20)), "params": SamplingParams(), "max_tokens": 1}
    again = [(b"a", AddRequest(request_id="again", **long))]
    hit, _, _ = run([[(b"a", Hello()), (b"a", AddRequest(request_id="first", **long))], [], [], again])
    assert [output.num_cached_tokens for output in hit.outputs() if output.request_id == "again"] == [16]
    cold, _, _ = run([[(b"a", Hello()), (b"a", AddRequest(request_id="first", **long))], [], [], [(b"a", ResetPrefixCache()), *again]])
    assert [output.num_cached_tokens for output in cold.outputs() if output.request_id == "again"] == [0]


def test_thread_executor_keeps_order_and_hands_on_what_a_step_raises() -> None:
    class Failing(CountingRunner):
        def launch(self, plan: StepPlan) -> StepHandle:
            if plan.step_id == 2:
                raise MemoryError("no room")
            return super().launch(plan)

    executor = ThreadExecutor(Failing())
    handles = [executor.submit(empty_plan(step)) for step in range(3)]
    assert [handle.result().step_id for handle in handles[:2]] == [0, 1]
    with pytest.raises(MemoryError, match="no room"):
        handles[2].result()
    executor.close()


def test_broadcast_executor_sends_each_plan_before_it_runs_it() -> None:
    runner = CountingRunner()

    class Sink:
        def send(self, plan: StepPlan) -> None:
            runner.log.append(("send", plan.step_id))

        def close(self) -> None:
            runner.log.append(("close", 0))

    executor = BroadcastExecutor(InlineExecutor(runner), Sink())
    executor.submit(empty_plan(4)).result()
    executor.close()
    assert runner.log == [("send", 4), ("launch", 4), ("result", 4), ("close", 0)]

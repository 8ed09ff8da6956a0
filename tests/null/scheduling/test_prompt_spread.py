"""While some requests generate, prompts that arrive are spread over several steps."""

from __future__ import annotations

import pytest

from trivium.protocol.messages import AddRequest
from trivium.scheduling.limits import SchedulerLimits
from trivium.scheduling.scheduler import MIN_PROMPT_SHARE, Scheduler
from trivium.scheduling.step import StepPlan, StepResult
from trivium.types import SamplingParams

BUDGET = 8192


def make_scheduler(prompt_spread: int) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            max_num_seqs=512,
            max_num_batched_tokens=BUDGET,
            max_model_len=4096,
            num_blocks=40_000,
            enable_prefix_caching=False,
            prompt_spread=prompt_spread,
        )
    )


def add(scheduler: Scheduler, name: str, num_tokens: int) -> None:
    scheduler.add(AddRequest(request_id=name, prompt_token_ids=[7] * num_tokens, params=SamplingParams(ignore_eos=True), max_tokens=400))


def step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(StepResult(step_id=plan.step_id, token_ids=[5] * sum(plan.samples)))
    return plan


def prompt_tokens(plan: StepPlan) -> int:
    return sum(plan.num_fed)


@pytest.mark.parametrize(
    ("prompt_spread", "arriving", "expected"),
    [
        (1, 20, BUDGET - 1),  # as much as fits beside the one that decodes
        (16, 1, MIN_PROMPT_SHARE),
        (16, 20, 20 * 1000 // 16),
        (16, 300, BUDGET - 1),  # a long queue gets whole steps
    ],
)
def test_share_of_a_step_that_prompts_get_while_others_decode(prompt_spread: int, arriving: int, expected: int) -> None:
    scheduler = make_scheduler(prompt_spread)
    add(scheduler, "first", 100)
    step(scheduler)
    for index in range(arriving):
        add(scheduler, f"r{index}", 1000)
    assert prompt_tokens(step(scheduler)) == expected


def test_prompts_have_whole_steps_while_nobody_decodes() -> None:
    scheduler = make_scheduler(16)
    for index in range(5):
        add(scheduler, f"r{index}", 3000)
    assert prompt_tokens(step(scheduler)) == BUDGET


def test_everybody_gets_on() -> None:
    scheduler = make_scheduler(4)
    for index in range(40):
        add(scheduler, f"r{index}", 700)
    done = 0
    for _ in range(40 * 700 // MIN_PROMPT_SHARE + 5):
        done += prompt_tokens(step(scheduler))
    assert done == 40 * 700
    assert all(request.num_output_tokens for request in scheduler.running)

"""Resources shared by instances of several models."""

from __future__ import annotations

import pytest

from trivium.batching.rate_limiter import Permit, RateLimiter
from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelRateLimiter


def need(count: int, *, name: str = "R", is_global: bool = False, priority: int = 0) -> ModelRateLimiter:
    resource = ModelRateLimiter.Resource(name=name, count=count)
    setattr(resource, "global", is_global)
    return ModelRateLimiter(resources=[resource], priority=priority)


def register(limiter: RateLimiter, config: ModelRateLimiter, device: int = -1) -> Permit:
    permit = limiter.register(config, device)
    assert permit is not None
    return permit


def ask(permit: Permit, log: list[str], name: str) -> None:
    permit.acquire(lambda: log.append(name))


def test_there_are_as_many_copies_as_the_most_demanding_instance_needs() -> None:
    limiter, log = RateLimiter(), []
    big, one, two = (register(limiter, need(count)) for count in (4, 2, 2))
    ask(one, log, "one")
    ask(two, log, "two")
    ask(big, log, "big")
    assert log == ["one", "two"]
    one.release()
    assert log == ["one", "two"]
    two.release()
    assert log == ["one", "two", "big"]


def test_a_limit_of_the_server_allows_more_at_once() -> None:
    limiter, log = RateLimiter({("R", None): 6}), []
    for name, count in (("big", 4), ("one", 2), ("two", 2)):
        ask(register(limiter, need(count)), log, name)
    assert log == ["big", "one"]


def test_a_limit_under_what_an_instance_needs_is_refused() -> None:
    with pytest.raises(ModelLoadError, match='"R" is limited to 3 .* minimum required count is 4'):
        RateLimiter({("R", None): 3}).register(need(4), -1)


def test_a_name_is_global_or_of_a_device_not_both() -> None:
    limiter = RateLimiter()
    limiter.register(need(1), 0)
    with pytest.raises(ModelLoadError, match="both global and device-specific"):
        limiter.register(need(1, is_global=True), 0)


def test_resources_count_for_each_device_unless_they_are_global() -> None:
    limiter, log = RateLimiter(), []
    for device in (0, 1):
        ask(register(limiter, need(1), device), log, f"device {device}")
        ask(register(limiter, need(1, name="G", is_global=True), device), log, f"global on {device}")
    assert log == ["device 0", "global on 0", "device 1"]


def test_nothing_limits_an_instance_without_resources() -> None:
    assert RateLimiter().register(ModelRateLimiter(priority=3), -1) is None


def test_a_priority_of_two_runs_half_as_often() -> None:
    limiter = RateLimiter()
    permits = [register(limiter, need(1, priority=priority)) for priority in (1, 1, 2)]
    ran: list[int] = []
    for number, permit in enumerate(permits):
        permit.acquire(lambda number=number: ran.append(number))
    for turn in range(50):
        number = ran[turn]
        permits[number].release()
        permits[number].acquire(lambda number=number: ran.append(number))
    assert [ran[:50].count(number) for number in range(3)] == [20, 20, 10]


def test_one_that_needs_much_is_not_passed_over() -> None:
    limiter, log = RateLimiter({("R", None): 4}), []
    small, big, other = register(limiter, need(2)), register(limiter, need(4)), register(limiter, need(2))
    ask(small, log, "small")
    ask(big, log, "big")
    ask(other, log, "other")
    assert log == ["small"]
    small.release()
    assert log == ["small", "big"]
    big.release()
    assert log == ["small", "big", "other"]


def test_a_closed_instance_gives_back_what_it_holds_and_no_longer_waits() -> None:
    limiter, log = RateLimiter(), []
    holder, waiter, third = (register(limiter, need(1)) for _ in range(3))
    for permit, name in ((holder, "holder"), (waiter, "waiter"), (third, "third")):
        ask(permit, log, name)
    waiter.close()
    holder.close()
    assert log == ["holder", "third"]


def test_giving_up_before_running_does_not_count_as_an_execution() -> None:
    limiter = RateLimiter()
    permit = register(limiter, need(1))
    ask(permit, [], "x")
    permit.release(has_run=False)
    assert permit.num_executions == 0

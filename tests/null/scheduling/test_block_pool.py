from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.scheduling.block_pool import NULL_BLOCK, BlockPool


def content(name: int) -> bytes:
    return name.to_bytes(16, "big")


def test_blocks_are_handed_out_once_and_never_the_null_block() -> None:
    pool = BlockPool(8)
    first, second = pool.allocate(3), pool.allocate(4)
    assert sorted(first + second) == list(range(1, 8))
    assert pool.num_free == 0
    pool.check_integrity()
    with pytest.raises(AssertionError, match="1 blocks asked, 0 free"):
        pool.allocate(1)


def test_freed_blocks_come_back_least_recently_freed_first_and_the_tail_of_a_table_before_its_head() -> None:
    pool = BlockPool(8)
    early, late = pool.allocate(3), pool.allocate(3)
    for block in early + late:
        pool.publish(block, content(block))
    pool.free(early)
    pool.free(late)
    assert pool.allocate(7) == [7, *reversed(early), *reversed(late)]


def test_blocks_without_content_are_reused_before_cached_ones() -> None:
    pool = BlockPool(6)
    cached, plain = pool.allocate(2), pool.allocate(2)
    for block in cached:
        pool.publish(block, content(block))
    pool.free(cached)
    pool.free(plain)
    assert set(pool.allocate(3)) == {*plain, 5}
    assert pool.num_hashes == 2


def test_a_hit_takes_an_idle_block_out_of_the_middle_of_the_free_list() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(5)
    for block in blocks:
        pool.publish(block, content(block))
    pool.free(blocks)
    assert pool.num_idle(blocks) == 5
    found = pool.find(content(3))
    pool.touch([found])
    assert (found, pool.ref_count(3), pool.num_free, pool.num_idle(blocks)) == (3, 1, 4, 4)
    pool.check_integrity()
    pool.touch([3])
    assert (pool.ref_count(3), pool.num_free) == (2, 4)
    assert 3 not in pool.allocate(4)
    pool.check_integrity()


def test_a_block_handed_out_again_is_no_longer_found() -> None:
    pool = BlockPool(3)
    pool.publish(pool.allocate(1)[0], content(9))
    pool.free([1])
    assert pool.find(content(9)) == 1
    pool.allocate(2)
    assert pool.find(content(9)) == NULL_BLOCK
    pool.check_integrity()


def test_blocks_with_equal_content_are_all_findable_and_leave_one_by_one() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.publish(block, content(1))
        assert pool.find(content(1)) == block, "the newest is found"
    pool.check_integrity()
    pool.free([2])
    pool.free([3])
    assert set(pool.allocate(3)) == {2, 4, 5}, "the middle twin is gone"
    pool.check_integrity()
    pool.touch([3])
    assert pool.num_free == 0
    pool.free([3])
    pool.allocate(1)
    assert pool.find(content(1)) == 1, "the newest twin is gone, the oldest is left"
    pool.check_integrity()
    pool.free([1])
    pool.allocate(1)
    assert pool.find(content(1)) == NULL_BLOCK
    pool.check_integrity()


def test_forgetting_a_content_forgets_all_its_blocks_held_or_not() -> None:
    pool = BlockPool(6)
    for block in pool.allocate(3):
        pool.publish(block, content(1))
    pool.free([2])
    pool.forget(content(1))
    pool.forget(content(2))
    assert pool.find(content(1)) == NULL_BLOCK
    assert pool.num_hashes == 0
    pool.check_integrity()


def test_forgetting_idle_blocks_keeps_held_ones() -> None:
    pool = BlockPool(6)
    for block in pool.allocate(4):
        pool.publish(block, content(block))
    pool.free([1, 2])
    pool.forget_idle()
    assert [pool.find(content(block)) for block in range(1, 5)] == [0, 0, 3, 4]
    pool.check_integrity()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool: pool.free([2]),
        lambda pool: pool.publish(2, content(1)),
        lambda pool: [pool.publish(1, content(number)) for number in range(2)],
        lambda pool: BlockPool(1),
    ],
    ids=["free what is free", "publish what is idle", "publish twice", "no room for the null block"],
)
def test_misuse_is_our_bug_and_asserted(misuse: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        misuse(pool)


@pytest.mark.parametrize("column", ["_next", "_prev", "_refs", "_hashes", "_twin_prev", "num_free"])
def test_check_integrity_notices_damage(column: str) -> None:
    pool = BlockPool(6)
    pool.publish(pool.allocate(1)[0], content(1))
    pool.check_integrity()
    if column == "num_free":
        pool.num_free -= 1
    else:
        getattr(pool, column)[1 if column in ("_hashes", "_twin_prev") else 3] = 5
    with pytest.raises(AssertionError):
        pool.check_integrity()


def test_allocation_takes_time_by_blocks_asked_not_by_blocks_there() -> None:
    """TGI #2007: allocation was slow with many blocks."""

    def best_time(pool: BlockPool) -> float:
        times: list[float] = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(50):
                pool.free(pool.allocate(4))
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_time(BlockPool(500_000)) < 20 * best_time(BlockPool(50))


@given(seed=st.integers(0, 2**32), num_blocks=st.integers(2, 24))
@settings(max_examples=60, deadline=None)
def test_blocks_are_conserved_whatever_is_done(seed: int, num_blocks: int) -> None:
    """Against a model with plain sets: who holds what, and which contents an idle block may still have."""
    rng = random.Random(seed)
    pool = BlockPool(num_blocks)
    tables: list[list[int]] = []
    contents: dict[int, bytes] = {}
    for _ in range(60):
        action = rng.choice(["allocate", "free", "publish", "hit", "forget", "forget_idle"])
        if action == "allocate":
            count = rng.randint(0, pool.num_free)
            taken = pool.allocate(count)
            assert len(set(taken)) == count
            assert not set(taken) & {block for table in tables for block in table}
            for block in taken:
                contents.pop(block, None)
            tables.append(taken)
        elif action == "free" and tables:
            pool.free(tables.pop(rng.randrange(len(tables))))
        elif action == "publish" and tables:
            for block in rng.choice(tables):
                if block not in contents:
                    contents[block] = content(rng.randint(1, 6))
                    pool.publish(block, contents[block])
        elif action == "hit":
            block = pool.find(content(rng.randint(1, 6)))
            if block:
                assert block in contents
                pool.touch([block])
                tables.append([block])
        elif action == "forget":
            name = content(rng.randint(1, 6))
            pool.forget(name)
            contents = {block: value for block, value in contents.items() if value != name}
        elif action == "forget_idle":
            pool.forget_idle()
            held = {block for table in tables for block in table}
            contents = {block: value for block, value in contents.items() if block in held}
        pool.check_integrity()
        held = {block for table in tables for block in table}
        assert pool.num_free == pool.num_usable - len(held)
        assert pool.num_hashes == len(set(contents.values()))
        for name in range(1, 7):
            block = pool.find(content(name))
            assert contents.get(block) == (content(name) if block else None)
            assert bool(block) == (content(name) in contents.values())

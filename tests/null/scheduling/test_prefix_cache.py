from __future__ import annotations

import random
from hashlib import blake2b

import pytest
from helpers_fake_engine import FakeEngine, make_add, make_limits
from helpers_fake_runner import generate_reference

from trivium.scheduling.block_pool import BlockPool
from trivium.scheduling.prefix_cache import ROOT, PrefixCache, hash_block
from trivium.scheduling.request import Request


def make_request(prompt: list[int], **changes: object) -> Request:
    return Request(make_add("r", prompt, **changes), sort_key=(0, 0), max_len=1000)


def hashes_of(prompt: list[int], *, block_size: int = 4, **changes: object) -> list[bytes]:
    request = make_request(prompt, **changes)
    PrefixCache(BlockPool(8), block_size).match(request)
    return request.block_hashes


def test_a_block_hash_is_blake2b_over_parent_and_tokens() -> None:
    first = blake2b(bytes(16) + b"".join(token.to_bytes(4, "little") for token in (1, 2, 3, 4)), digest_size=16).digest()
    second = blake2b(first + b"".join(token.to_bytes(4, "little") for token in (5, 6, 7, 70_000)), digest_size=16).digest()
    assert hashes_of([1, 2, 3, 4, 5, 6, 7, 70_000, 9]) == [first, second]


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 11])
def test_only_full_blocks_are_hashed(num_tokens: int) -> None:
    assert len(hashes_of(list(range(num_tokens)))) == num_tokens // 4


def test_hashes_depend_on_every_earlier_token_and_on_the_salt() -> None:
    base = hashes_of(list(range(8)))
    assert hashes_of([9, *range(1, 8)])[1] != base[1]
    salted = [hashes_of(list(range(8)), cache_salt=salt) for salt in ("", "a", "b")]
    assert len({tuple(hashes) for hashes in [base, *salted]}) == 4
    assert all(not set(base) & set(hashes) for hashes in salted)


def test_a_salt_can_not_pose_as_tokens_or_as_a_parent() -> None:
    assert hash_block(ROOT, b"abcd", "efgh") != hash_block(ROOT, b"abcdefgh")
    assert hash_block(ROOT, b"abcd", "\ud800") != hash_block(ROOT, b"abcd", "?")


def test_a_block_is_hashed_once_in_a_requests_life(monkeypatch: pytest.MonkeyPatch) -> None:
    from trivium.scheduling import prefix_cache

    calls: list[bytes] = []

    def counting_hash(parent: bytes, tokens: bytes, salt: str | None = None) -> bytes:
        calls.append(tokens)
        return hash_block(parent, tokens, salt)

    monkeypatch.setattr(prefix_cache, "hash_block", counting_hash)
    engine = FakeEngine(make_limits(num_blocks=14, max_num_batched_tokens=7), depth=1)
    for name in range(3):
        engine.add(str(name), [name * 100 + index for index in range(13)], max_tokens=20)
    engine.drain()
    assert engine.scheduler.stats().num_preemptions > 0
    assert len(calls) == 3 * ((13 + 19) // 4)


def run_one(engine: FakeEngine, name: str, prompt: list[int], **changes: object) -> int:
    """Cached tokens of a request run to its end."""
    engine.add(name, prompt, **changes)
    engine.drain()
    return engine.received[name].num_cached_tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_only_whole_blocks_are_hit_and_the_last_token_is_always_computed(depth: int) -> None:
    """TGI's radix facts: 4 prompt tokens in blocks of 2 leave a prefix of 4 to a longer prompt, 3 leave 2; a full hit gives a token back."""
    engine = FakeEngine(make_limits(block_size=2), depth=depth)
    assert run_one(engine, "a", [0, 1, 2, 3]) == 0
    assert run_one(engine, "b", [0, 1, 2, 3]) == 2
    assert run_one(engine, "c", [0, 1, 2, 3, 4]) == 4
    assert run_one(engine, "d", [0, 1, 2]) == 2
    assert run_one(engine, "e", [0, 1]) == 0
    assert run_one(engine, "f", [0]) == 0


def test_least_recently_used_prefix_is_evicted_first() -> None:
    """TGI: 6 blocks of one token; A of 4 tokens ends, then B of 2; 4 new blocks come from A."""
    engine = FakeEngine(make_limits(block_size=1, num_blocks=7))
    run_one(engine, "a", [1, 2, 3, 4], max_tokens=1)
    run_one(engine, "b", [5, 6], max_tokens=1)
    run_one(engine, "c", [11, 12, 13, 14], max_tokens=1)
    assert run_one(engine, "d", [5, 6, 7], max_tokens=1) == 2
    assert run_one(engine, "e", [1, 2], max_tokens=1) == 0


def test_a_prefix_loses_its_tail_first() -> None:
    engine = FakeEngine(make_limits(block_size=1, num_blocks=7))
    run_one(engine, "a", [1, 2, 3, 4], max_tokens=1)
    run_one(engine, "b", [5, 6, 7], max_tokens=1)
    assert run_one(engine, "c", [1, 2, 3, 4], max_tokens=1) == 3


def test_equal_prompts_of_one_batch_share_blocks_at_once() -> None:
    engine = FakeEngine(make_limits())
    for name in "abc":
        engine.add(name, list(range(10)))
    plan = engine.schedule()
    assert plan is not None
    assert plan.num_computed == [0, 8, 8]
    assert len({blocks[0] for blocks in plan.new_blocks}) == 1
    assert len({blocks[2] for blocks in plan.new_blocks}) == 3, "the block that each goes on writing is its own"
    engine.update()
    engine.drain()
    assert [engine.received[name].num_cached_tokens for name in "abc"] == [0, 8, 8]


def test_a_chunked_prompt_is_findable_as_far_as_it_is_scheduled() -> None:
    """TGI PR 2489: a prefix cache that offered blocks before they were computed. The runner checks what is read."""
    engine = FakeEngine(make_limits(max_num_batched_tokens=10))
    prompt = list(range(30))
    engine.add("a", prompt)
    engine.step()
    engine.abort("a")
    engine.add("b", prompt)
    engine.drain()
    assert engine.received["b"].num_cached_tokens == 8
    assert engine.received["b"].tokens == generate_reference(prompt, 8, 1000)


@pytest.mark.parametrize("depth", [0, 1])
def test_generated_tokens_are_cached(depth: int) -> None:
    engine = FakeEngine(make_limits(), depth=depth)
    run_one(engine, "a", list(range(6)), max_tokens=11)
    conversation = list(range(6)) + engine.received["a"].tokens
    assert len(conversation) == 17
    assert run_one(engine, "b", [*conversation, 5]) == 16


def test_generated_tokens_are_shared_while_their_request_still_runs() -> None:
    engine = FakeEngine(make_limits(), depth=1)
    engine.add("a", list(range(6)), max_tokens=100)
    for _ in range(14):
        engine.step()
    conversation = list(range(6)) + engine.received["a"].tokens
    engine.add("b", conversation)
    engine.step()
    engine.step()
    assert engine.received["a"].last is None
    assert engine.received["b"].num_cached_tokens >= len(conversation) - 8
    engine.drain()


@pytest.mark.parametrize(
    ("first", "second", "cached"), [(None, None, 8), ("x", "x", 8), ("x", None, 0), (None, "x", 0), ("x", "y", 0), ("", None, 0)]
)
def test_no_hit_across_salts(first: str | None, second: str | None, cached: int) -> None:
    engine = FakeEngine(make_limits())
    run_one(engine, "a", list(range(10)), cache_salt=first)
    assert run_one(engine, "b", list(range(10)), cache_salt=second) == cached


@pytest.mark.parametrize(
    ("changes", "cached"),
    [
        ({}, 8),
        ({"skip_reading_prefix_cache": True}, 0),
        ({"skip_reading_prefix_cache": False}, 8),
        ({"prompt_logprobs": 0}, 0),
        ({"prompt_logprobs": 0, "skip_reading_prefix_cache": False}, 0),
    ],
)
def test_requests_that_skip_the_cache_still_fill_it(changes: dict[str, object], cached: int) -> None:
    engine = FakeEngine(make_limits())
    assert run_one(engine, "a", list(range(10)), **changes) == 0
    assert run_one(engine, "b", list(range(10)), **changes) == cached
    assert run_one(engine, "c", list(range(10))) == 8
    stats = engine.scheduler.stats()
    looked_up = 10 * (1 + 2 * bool(engine.scheduler.cache.enabled and cached))
    assert (stats.prefix_queries, stats.prefix_hits) == (looked_up, 8 + cached)


def test_without_prefix_caching_nothing_is_hashed_or_hit() -> None:
    engine = FakeEngine(make_limits(enable_prefix_caching=False))
    assert run_one(engine, "a", list(range(10)), max_tokens=20) == 0
    assert run_one(engine, "b", list(range(10)), max_tokens=20) == 0
    assert engine.scheduler.pool.num_hashes == 0
    assert engine.scheduler.stats().prefix_queries == 0
    assert engine.received["a"].tokens == engine.received["b"].tokens


def test_reset_forgets_what_nobody_holds() -> None:
    engine = FakeEngine(make_limits())
    run_one(engine, "a", list(range(10)))
    engine.scheduler.reset_prefix_cache()
    assert run_one(engine, "b", list(range(10))) == 0
    engine.add("c", list(range(50, 60)), max_tokens=50)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    engine.add("d", list(range(50, 60)))
    engine.drain()
    assert engine.received["d"].num_cached_tokens == 8


def test_all_hits_are_taken_before_any_block_is_handed_out() -> None:
    """vLLM #33775: a hit that lay at the head of the free list was handed out as a new block of the same request."""
    engine = FakeEngine(make_limits(num_blocks=7))
    run_one(engine, "a", list(range(20)), max_tokens=1)
    plan_start = len(engine.plans)
    assert run_one(engine, "b", [*range(16), 50, 51, 52, 53, 54], max_tokens=1) == 16
    (blocks,) = engine.plans[plan_start].new_blocks
    assert len(set(blocks)) == len(blocks) == 6


def test_duplicates_are_returned_and_one_of_them_is_hit() -> None:
    """TGI: blocks of one token; two requests with one prompt run side by side without sharing, both are given back, a third hits."""
    engine = FakeEngine(make_limits(block_size=1, num_blocks=10))
    for name in "ab":
        engine.add(name, [1, 2, 3, 4], max_tokens=1, skip_reading_prefix_cache=True)
    engine.drain()
    assert engine.scheduler.pool.num_free == 9
    assert engine.scheduler.pool.num_hashes == 4
    assert run_one(engine, "c", [1, 2, 3, 4, 5], max_tokens=1) == 4


def test_branches_of_one_prompt_share_its_stem() -> None:
    """TGI's radix test with [0, 1] cached and two prompts that go on with 2, 3 and then differ."""
    engine = FakeEngine(make_limits(block_size=1, num_blocks=20))
    run_one(engine, "stem", [0, 1], max_tokens=1)
    engine.add("a", [0, 1, 2, 3, 4, 5], max_tokens=2)
    engine.add("b", [0, 1, 2, 3, 6, 7], max_tokens=2)
    engine.drain()
    assert engine.received["a"].num_cached_tokens == 2
    assert engine.received["b"].num_cached_tokens == 4, "unlike in TGI, what runs is shared too"
    assert run_one(engine, "c", [0, 1, 2, 3, 4, 5], max_tokens=2) == 5
    assert run_one(engine, "d", [0, 1, 2, 3, 6, 7], max_tokens=2) == 5


@pytest.mark.parametrize("depth", [0, 1])
def test_random_prompts_over_two_tokens_never_read_a_wrong_block(depth: int) -> None:
    """TGI's allocator property test: a vocabulary of two makes nearly everything share prefixes; few blocks make everything be evicted."""
    rng = random.Random(depth)
    engine = FakeEngine(make_limits(block_size=2, num_blocks=30, max_num_seqs=5), depth=depth, vocab_size=2, is_checking=False)
    corpus = [rng.randrange(2) for _ in range(200)]
    for name in range(400):
        start = rng.randrange(len(corpus) - 20)
        engine.add(str(name), corpus[start : start + rng.randint(1, 12)], max_tokens=rng.randint(1, 8))
        if rng.random() < 0.7:
            engine.step()
    engine.drain()
    for name, received in engine.received.items():
        assert received.finish_reason == "length", name
    assert engine.scheduler.stats().prefix_hits > 500

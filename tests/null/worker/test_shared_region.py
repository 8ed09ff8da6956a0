"""The allocator against a model of it, and the region that two processes share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.protocol.shared_region import ALIGNMENT, KEPT_SIZE, Allocator, SharedRegion


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=60))
def test_blocks_never_overlap_and_everything_comes_back(steps: list[tuple[bool, int]]) -> None:
    allocator = Allocator(16 * ALIGNMENT)
    used: dict[int, int] = {}
    for takes, number in steps:
        if takes:
            offset = allocator.allocate(number)
            if offset is not None:
                size = max(ALIGNMENT, -(-number // ALIGNMENT) * ALIGNMENT)
                assert offset % ALIGNMENT == 0
                assert 0 <= offset <= 16 * ALIGNMENT - size
                assert all(offset + size <= other or other + room <= offset for other, room in used.items())
                used[offset] = size
        elif used:
            offset = sorted(used)[number % len(used)]
            allocator.free(offset)
            del used[offset]
        assert allocator.num_used == len(used)
        assert allocator.used_end == max((offset + size for offset, size in used.items()), default=0)
    for offset in used:
        allocator.free(offset)
    assert allocator.allocate(16 * ALIGNMENT) == 0
    assert allocator.allocate(1) is None


def test_the_first_place_that_fits_is_taken() -> None:
    allocator = Allocator(10 * ALIGNMENT)
    first, second, third = (allocator.allocate(2 * ALIGNMENT) for _ in range(3))
    assert (first, second, third) == (0, 2 * ALIGNMENT, 4 * ALIGNMENT)
    allocator.free(0)
    allocator.free(4 * ALIGNMENT)
    assert allocator.allocate(3 * ALIGNMENT) == 4 * ALIGNMENT
    assert allocator.allocate(2 * ALIGNMENT) == 0
    with pytest.raises(ValueError, match="no block is in use at 64"):
        allocator.free(ALIGNMENT)


def resident_kb(region: SharedRegion) -> int:
    return os.stat(region.fd).st_blocks // 2


def test_what_one_side_puts_the_other_sees_and_memory_is_given_back() -> None:
    region = SharedRegion.create(64 * 2**20)
    other = SharedRegion.open(os.dup(region.fd))
    assert resident_kb(region) == 0
    small, large = region.put(b"x" * 100_000), region.put(memoryview(bytearray(40 * 2**20)))
    assert small == 0
    assert large is not None
    assert bytes(other.view(small, 3)) == b"xxx"
    assert region.num_blocks == 2
    assert resident_kb(region) > 40 * 1024
    assert region.put(bytes(30 * 2**20)) is None
    region.free(large)
    assert resident_kb(region) <= KEPT_SIZE // 1024 + 4
    region.free(small)
    for offset, size in ((-1, 2), (0, -1), (0, 64 * 2**20 + 1), (64 * 2**20, 1)):
        with pytest.raises(ValueError, match="outside of the shared memory"):
            other.view(offset, size)
    kept = other.view(0, 3)
    for side in (region, other, other):
        side.close()
    assert bytes(kept) == b"xxx"


def test_neither_side_can_make_it_smaller() -> None:
    region = SharedRegion.create(2**20)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, 0)
    region.close()


def test_no_descriptor_is_left_when_there_is_no_memory_to_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError("no memory")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr("trivium.protocol.shared_region.mmap.mmap", refuse)
    with pytest.raises(OSError, match="no memory"):
        SharedRegion.create(2**20)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""The arena that packed weights lie in."""

from __future__ import annotations

import gc
import weakref

import torch

from trivium.ops.cpu.memory import ALIGNMENT, CHUNK_BYTES, Arena, prefer_huge_pages


def test_tensors_are_aligned_and_apart():
    arena = Arena()
    tensors = [arena.empty(entries, dtype) for entries in (1, 7, 1000, 33) for dtype in (torch.bfloat16, torch.float32, torch.int8)]
    for number, tensor in enumerate(tensors):
        assert tensor.data_ptr() % ALIGNMENT == 0 and tensor.is_contiguous()
        tensor.fill_(number)
    assert all(tensor.eq(number).all() for number, tensor in enumerate(tensors))


def test_large_tensors_get_a_chunk_of_their_own_and_full_chunks_are_left():
    arena = Arena()
    big = arena.empty(CHUNK_BYTES + 1, torch.int8)
    assert big.numel() == CHUNK_BYTES + 1
    halves = [arena.empty(CHUNK_BYTES // 2 + 1, torch.int8) for _ in range(2)]
    for number, tensor in enumerate((big, *halves)):
        tensor.fill_(number)
    assert big[-1] == 0 and halves[0][-1] == 1 and halves[1][0] == 2


def test_a_chunk_is_freed_with_its_last_tensor():
    arena = Arena()
    one, two = arena.empty(10, torch.float32), arena.empty(10, torch.float32)
    assert two.data_ptr() - one.data_ptr() == ALIGNMENT
    chunk = weakref.ref(one.arena_chunk)
    del one
    gc.collect()
    assert chunk() is not None
    del two
    gc.collect()
    assert chunk() is None
    assert arena.empty(3, torch.float32).numel() == 3


def test_advice_changes_no_content():
    tensor = torch.arange(1 << 20)
    prefer_huge_pages(tensor)
    prefer_huge_pages(tensor[:3])
    prefer_huge_pages(torch.empty(0))
    assert torch.equal(tensor, torch.arange(1 << 20))

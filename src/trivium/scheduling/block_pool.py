"""Which KV blocks are in use, by how many requests, and what the others still remember.

All state is columns indexed by block id, so that a pool of a million blocks is a handful of lists and nothing for the garbage collector
to walk. Block 0 is the null block: never handed out, it is what unused entries of a block table point to, and here the sentinel of
both linked lists.
"""

from __future__ import annotations

from collections.abc import Sequence

NULL_BLOCK = 0


class BlockPool:
    """Reference-counted blocks, a free list in LRU order, and a map from content hash to blocks.

    The free list is doubly linked through `_next` and `_prev` (a deque could not give up a block from its middle, which a prefix hit
    needs). Order of reuse, from the head:

    1. blocks without a hash, last freed first: nobody can ask for them again;
    2. hashed blocks, least recently freed first; of one request the tail first, since a prefix is of use without its tail.

    A free block keeps its hash, and so can be hit, until it is handed out again. Several blocks may share a hash (*twins*: a block
    table only grows, so a duplicate is never merged); they are linked through `_twin_next` and `_twin_prev`.
    """

    __slots__ = ("_first_twin", "_hashes", "_next", "_prev", "_refs", "_twin_next", "_twin_prev", "num_blocks", "num_free")

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` counts the null block."""
        assert num_blocks >= 2, f"a pool needs the null block and one more, got {num_blocks}"
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._first_twin: dict[bytes, int] = {}
        self._twin_next = [NULL_BLOCK] * num_blocks
        self._twin_prev = [NULL_BLOCK] * num_blocks

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_hashes(self) -> int:
        """Distinct contents that can be hit."""
        return len(self._first_twin)

    def ref_count(self, block: int) -> int:
        return self._refs[block]

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are in the free list: what touching them takes from `num_free`."""
        refs = self._refs
        return sum(not refs[block] for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks from the head of the free list; what they remembered is forgotten. O(count)."""
        assert count <= self.num_free, f"{count} blocks asked, {self.num_free} free"
        following, refs, hashes = self._next, self._refs, self._hashes
        taken: list[int] = []
        block = following[NULL_BLOCK]
        for _ in range(count):
            taken.append(block)
            refs[block] = 1
            if hashes[block] is not None:
                self._unpublish(block)
            block = following[block]
        following[NULL_BLOCK] = block
        self._prev[block] = NULL_BLOCK
        self.num_free -= count
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """Adds a reference to each block, taking idle ones out of the free list."""
        refs = self._refs
        for block in blocks:
            if not refs[block]:
                before, after = self._prev[block], self._next[block]
                self._next[before] = after
                self._prev[after] = before
                self.num_free -= 1
            refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drops a reference of each block of one table, given in table order."""
        refs, hashes = self._refs, self._hashes
        for block in reversed(blocks):
            assert refs[block] > 0, f"block {block} was freed twice"
            refs[block] -= 1
            if not refs[block]:
                self._link_after(NULL_BLOCK if hashes[block] is None else self._prev[NULL_BLOCK], block)

    def find(self, block_hash: bytes) -> int:
        """A block with this content, or `NULL_BLOCK`."""
        return self._first_twin.get(block_hash, NULL_BLOCK)

    def publish(self, block: int, block_hash: bytes) -> None:
        """Makes a block findable. Its content must be written by a step that was scheduled no later than the one that will read it."""
        assert self._refs[block] > 0, f"block {block} is not in use"
        assert self._hashes[block] is None, f"block {block} already has a hash"
        self._hashes[block] = block_hash
        first = self._first_twin.get(block_hash, NULL_BLOCK)
        self._first_twin[block_hash] = block
        if first:
            self._twin_next[block] = first
            self._twin_prev[first] = block

    def forget(self, block_hash: bytes) -> None:
        """No block with this content can be hit any more."""
        while block := self.find(block_hash):
            self._unpublish(block)

    def forget_idle(self) -> None:
        """Forgets the content of every block that no request holds."""
        block = self._next[NULL_BLOCK]
        while block:
            if self._hashes[block] is not None:
                self._unpublish(block)
            block = self._next[block]

    def check_integrity(self) -> None:
        """Asserts that both lists, the counts and the map agree. O(blocks)."""
        assert self._refs[NULL_BLOCK] == 0
        assert self._hashes[NULL_BLOCK] is None
        free: set[int] = set()
        before, block = NULL_BLOCK, self._next[NULL_BLOCK]
        while block:
            assert block not in free, f"block {block} is twice in the free list"
            assert self._refs[block] == 0, f"block {block} is free and in use"
            assert self._prev[block] == before, f"the free list is torn at block {block}"
            free.add(block)
            before, block = block, self._next[block]
        assert self._prev[NULL_BLOCK] == before
        assert len(free) == self.num_free
        assert all(count > 0 for block, count in enumerate(self._refs) if block and block not in free), "a block is neither free nor in use"
        num_found = 0
        for block_hash, first in self._first_twin.items():
            before, block = NULL_BLOCK, first
            while block:
                assert self._hashes[block] == block_hash
                assert self._twin_prev[block] == before
                num_found += 1
                before, block = block, self._twin_next[block]
        assert num_found == sum(block_hash is not None for block_hash in self._hashes)

    def _link_after(self, before: int, block: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block] = before
        self._next[block] = after
        self.num_free += 1

    def _unpublish(self, block: int) -> None:
        block_hash = self._hashes[block]
        assert block_hash is not None
        self._hashes[block] = None
        before, after = self._twin_prev[block], self._twin_next[block]
        self._twin_prev[block] = self._twin_next[block] = NULL_BLOCK
        if after:
            self._twin_prev[after] = before
        if before:
            self._twin_next[before] = after
        elif after:
            self._first_twin[block_hash] = after
        else:
            del self._first_twin[block_hash]

"""Prefix caching by chained block hashes: which blocks of a new request's prompt are already in the cache.

A block's hash covers all tokens from the start of the sequence to the block's end, so one lookup per block finds the longest cached
prefix. Only full blocks are hashed. A block becomes findable when the step that computes its last token is *scheduled*: a later reader's
step runs after it, and a reader in the same step reads after all of that step's writes of the layer. So identical prompts of one batch share.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from trivium.scheduling.block_pool import BlockPool
from trivium.scheduling.request import Request

HASH_BYTES = 16
ROOT = bytes(HASH_BYTES)
"""What stands for the parent of a first block."""


def hash_block(parent: bytes, tokens: bytes, salt: str | None = None) -> bytes:
    """Hash of a full block. `tokens`: 4 bytes each, so that parent and tokens have fixed lengths and only the salt varies.

    `salt` belongs to first blocks only; the chain carries it on.
    """
    suffix = b"" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass")
    return blake2b(parent + tokens + suffix, digest_size=HASH_BYTES).digest()


class PrefixCache:
    """Policy over the pool's map. With `enabled=False` nothing is hashed, found or published."""

    __slots__ = ("_block_size", "_pool", "enabled", "num_hits", "num_queries")

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool = True) -> None:
        self._pool = pool
        self._block_size = block_size
        self.enabled = enabled
        self.num_queries = 0
        """Tokens of requests that were looked up when they first started."""
        self.num_hits = 0
        """How many of these were found."""

    def match(self, request: Request) -> list[int]:
        """Blocks of the longest cached prefix, without touching them. At least the last token is left to compute: it gives the logits."""
        if not (self.enabled and request.reads_cache):
            return []
        self._hash_up_to(request, len(request.token_ids) // self._block_size)
        hits: list[int] = []
        for index in range((len(request.token_ids) - 1) // self._block_size):
            block = self._pool.find(request.block_hashes[index])
            if not block:
                break
            hits.append(block)
        return hits

    def count(self, request: Request, num_hits: int) -> None:
        """Notes the outcome of a request's first start, in tokens."""
        if self.enabled and request.reads_cache:
            self.num_queries += len(request.token_ids)
            self.num_hits += num_hits

    def publish(self, request: Request) -> None:
        """Makes the request's blocks findable as far as their tokens are known and computed (see the module's docstring)."""
        if not self.enabled:
            return
        num_full = min(request.num_computed, len(request.token_ids)) // self._block_size
        if num_full <= request.num_published:
            return
        self._hash_up_to(request, num_full)
        for index in range(request.num_published, num_full):
            self._pool.publish(request.block_ids[index], request.block_hashes[index])
        request.num_published = num_full

    def forget(self, request: Request) -> None:
        """Makes every prefix of the request unfindable, whoever computed it.

        For a request whose numbers went wrong. By hash and not by block, because it may have left blocks behind when it was preempted,
        and may have read bad ones that somebody else left.
        """
        for block_hash in request.block_hashes:
            self._pool.forget(block_hash)

    def _hash_up_to(self, request: Request, num_blocks: int) -> None:
        hashes, size = request.block_hashes, self._block_size
        start = len(hashes)
        if start >= num_blocks:
            return
        data = array("I", request.token_ids[start * size : num_blocks * size]).tobytes()
        width = len(data) // (num_blocks - start)
        parent = hashes[-1] if hashes else ROOT
        for offset in range(0, len(data), width):
            parent = hash_block(parent, data[offset : offset + width], request.cache_salt if parent is ROOT else None)
            hashes.append(parent)

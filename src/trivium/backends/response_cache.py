"""Answers by request, least recently used out first, within a limit of bytes. One per server; models share it.

A key holds everything an answer depends on: the loaded version, each input's name, type, shape and bytes, the outputs asked for and the
parameters. Python compares keys in full on a hit, so that no answer is ever given to another request. The limit counts the bytes of both.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import cast

import msgspec

from trivium.infer import InferRequest, InferResponse, Tensor

ENTRY_OVERHEAD = 1024
"""Bytes that an entry costs beside its tensors: objects, names, the table."""

CacheKey = tuple[object, ...]


def cache_key(owner: int, request: InferRequest) -> CacheKey:
    """Owns its bytes: the request's buffers may be used again. `owner` is from `ResponseCache.new_owner`."""
    inputs = sorted((tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs)
    # True, 1 and 1.0 are equal in Python, and different parameters to a model.
    parameters = sorted((name, type(value).__name__, value) for name, value in request.parameters.items())
    return owner, tuple(inputs), tuple(sorted({output.name for output in request.outputs})), tuple(parameters)


class ResponseCache:
    """`byte_limit` 0 keeps nothing."""

    def __init__(self, byte_limit: int) -> None:
        self.byte_limit = byte_limit
        self.num_bytes = 0
        self._entries: OrderedDict[CacheKey, tuple[InferResponse, int]] = OrderedDict()
        self._owners = count()

    def __len__(self) -> int:
        return len(self._entries)

    def new_owner(self) -> int:
        """A number for each time a version is loaded: what is loaded anew under the same name and number may answer differently."""
        return next(self._owners)

    def get(self, key: CacheKey, request_id: str) -> InferResponse | None:
        """An answer to call one's own, with `request_id` as its id."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return msgspec.structs.replace(entry[0], id=request_id, outputs=list(entry[0].outputs), parameters=dict(entry[0].parameters))

    def put(self, key: CacheKey, response: InferResponse) -> None:
        """Nothing happens to an answer that is larger than the whole cache."""
        kept = msgspec.structs.replace(
            response,
            outputs=[Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in response.outputs],
            parameters=dict(response.parameters),
        )
        size = ENTRY_OVERHEAD + _num_bytes(key) + sum(len(tensor.data) for tensor in kept.outputs)
        if size > self.byte_limit:
            return
        self._remove(key)
        while self.num_bytes + size > self.byte_limit:
            self._remove(next(iter(self._entries)))
        self._entries[key] = kept, size
        self.num_bytes += size

    def drop(self, owner: int) -> None:
        """Forget what it has answered."""
        for key in [key for key in self._entries if key[0] == owner]:
            self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]


def _num_bytes(key: object) -> int:
    if isinstance(key, tuple):
        return sum(map(_num_bytes, cast("CacheKey", key)))
    return len(key) if isinstance(key, bytes | str) else 8

"""The outputs of one request between the task that receives them and the one that reads them."""

from __future__ import annotations

import asyncio
from collections import deque

from trivium.errors import TriviumError
from trivium.protocol.messages import TokenOutput


class OutputStream:
    """One reader. What has piled up when it comes is handed over as one output: a reader that is behind catches up at once."""

    __slots__ = ("_failure", "_outputs", "_waiter")

    def __init__(self) -> None:
        self._outputs: deque[TokenOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: TriviumError | None = None

    def put(self, output: TokenOutput) -> None:
        self._outputs.append(output)
        self._wake()

    def fail(self, error: TriviumError) -> None:
        """What is queued is still read; then `error` is raised."""
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> TokenOutput:
        while not self._outputs:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output = self._outputs.popleft()
        while self._outputs:
            _append(output, self._outputs.popleft())
        return output


def _append(output: TokenOutput, later: TokenOutput) -> None:
    """Make `output` say what it and `later` say one after the other."""
    output.token_ids = [*output.token_ids, *later.token_ids]
    if later.logprobs is not None:
        output.logprobs = [*(output.logprobs or []), *later.logprobs]
    output.prompt_logprobs = output.prompt_logprobs or later.prompt_logprobs
    output.num_cached_tokens = output.num_cached_tokens or later.num_cached_tokens
    output.scheduled_at = later.scheduled_at or output.scheduled_at
    output.num_preemptions = max(output.num_preemptions, later.num_preemptions)
    output.finish_reason, output.stop_reason = later.finish_reason, later.stop_reason
    output.error_slug, output.error_message = later.error_slug, later.error_message

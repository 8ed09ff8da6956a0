"""One choice of a request: engine outputs in, events out."""

from __future__ import annotations

from trivium.metrics.sequence import SequenceClock
from trivium.protocol.messages import TokenLogprobs, TokenOutput
from trivium.text import OutputText, Tokenizer
from trivium.types import FinishReason, Logprob, LogprobsDict, SamplingParams, TokenEvent


class Choice:
    """Turns the outputs of sequence `request_id` into `TokenEvent`s. `is_finished` once the last one was made."""

    __slots__ = ("_text", "_tokenizer", "clock", "index", "is_finished", "num_cached_tokens", "num_preemptions", "request_id")

    def __init__(
        self, index: int, request_id: str, params: SamplingParams, tokenizer: Tokenizer | None, prompt_ids: list[int], clock: SequenceClock
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.clock = clock
        self.is_finished = False
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self._tokenizer = tokenizer
        self._text = OutputText(tokenizer, params, prompt_ids) if tokenizer is not None and params.detokenize else None

    def consume(self, output: TokenOutput, now: float) -> TokenEvent | None:
        """None when the output brought nothing (news of the queue only)."""
        if output.scheduled_at:
            self.clock.on_scheduled(output.scheduled_at)
        if output.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = max(self.num_preemptions, output.num_preemptions)
        token_ids = output.token_ids
        if token_ids:
            self.clock.on_tokens(len(token_ids), now)
        reason = None if output.finish_reason is None else FinishReason(output.finish_reason)
        if not token_ids and reason is None:
            return None
        logprobs = None if output.logprobs is None else [logprobs_dict(entry, self._tokenizer) for entry in output.logprobs]
        event = TokenEvent(index=self.index, token_ids=token_ids, logprobs=logprobs, finish_reason=reason, stop_reason=output.stop_reason)
        if self._text is not None:
            self._add_text(self._text, event)
        self.is_finished = event.finish_reason is not None
        return event

    def _add_text(self, text: OutputText, event: TokenEvent) -> None:
        ends_with_stop = event.finish_reason is FinishReason.STOP
        last = len(event.token_ids) - 1
        pieces: list[str] = []
        for position, token_id in enumerate(event.token_ids):
            pieces.append(text.push(token_id, ends=ends_with_stop and position == last))
            if text.stop_reason is not None:
                break
        if event.finish_reason is not None and text.stop_reason is None:
            rest = text.finish()
            pieces = [*pieces[:-1], pieces[-1] + rest] if pieces else [rest]
        if text.stop_reason is not None:
            self._cut(event, len(pieces), text.stop_reason)
        event.text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        event.pieces = pieces if len(pieces) > 1 else None

    def _cut(self, event: TokenEvent, num_tokens: int, stop_string: str) -> None:
        """A stop string is complete: tokens that came with or after it are dropped, and the engine need not go on."""
        event.token_ids = event.token_ids[:num_tokens]
        if event.logprobs is not None:
            event.logprobs = event.logprobs[:num_tokens]
        event.finish_reason = FinishReason.STOP
        event.stop_reason = stop_string


def logprobs_dict(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> LogprobsDict:
    """The token itself first, then the top candidates by rank; a candidate that is the token itself is not repeated."""
    found: LogprobsDict = {entry.token_id: Logprob(entry.logprob, entry.rank, _name(entry.token_id, tokenizer))}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1):
        if token_id not in found:
            found[token_id] = Logprob(logprob, rank, _name(token_id, tokenizer))
    return found


def _name(token_id: int, tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.token_to_str(token_id)

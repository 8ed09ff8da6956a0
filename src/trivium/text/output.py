"""`OutputText`: from sampled tokens of one choice to text that may be shown: detokenized, stop strings cut, `min_tokens` heeded."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.text.detokenizer import IncrementalDetokenizer
from trivium.text.stop import StopStringMatcher
from trivium.text.tokenizer import Tokenizer
from trivium.types import SamplingParams


class OutputText:
    """Call `push` for each token in turn, `finish` once at the end. Pieces joined are the whole text, however they were asked for."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt_ids: Sequence[int] = ()) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_ids=prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._stop = StopStringMatcher(params.stop_strings, include_in_output=params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._num_tokens = 0

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was found; then the request is over and later tokens are not to be pushed."""
        return self._stop.matched

    def push(self, token_id: int, *, ends: bool = False) -> str:
        """New text. `ends` marks a token that ended the choice (EOS or a stop token): it counts but, as in vLLM, has no text."""
        self._num_tokens += 1
        if ends and not self._include_stop:
            return ""
        return self._stop.push(self._detokenizer.push(token_id), check=self._num_tokens > self._min_tokens)

    def finish(self) -> str:
        """Text that was held back until it was known that nothing follows."""
        rest = self._stop.push(self._detokenizer.flush(), check=self._num_tokens > self._min_tokens)
        return rest + self._stop.flush()

"""`LLMBackend`: a language model behind an engine client. Prompts become tokens, tokens become text; the engine sees only tokens."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any, Final

import msgspec

from trivium.backends.base import ChatPrompt, Generation, ModelInfo
from trivium.backends.llm_choice import Choice
from trivium.backends.llm_generation import LLMGeneration, Plan
from trivium.backends.llm_params import (
    MAX_PRIORITY,
    bad_words_token_ids,
    check_choosable,
    check_params,
    child_params,
    eos_token_ids,
    resolve_max_tokens,
    sampling_defaults,
    suggested_config,
)
from trivium.backends.llm_prompt import Prompter
from trivium.client.protocol import EngineClientProtocol
from trivium.config import ModelSettings
from trivium.errors import InvalidRequest, NotReady
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.protocol.messages import AddRequest
from trivium.text import ChatTemplate, Tokenizer
from trivium.text.grammar import GrammarChecker, check_tokenizer
from trivium.types import GenerateRequest, SamplingParams, StructuredOutputsParams, TextSpan

BAD_WORD_COST: Final = 128
"""Characters of plain text that take as long to tokenize as a short word, twice, with the calls' overhead."""


class LLMBackend:
    """One model; see `backends.base.ModelBackend`. The engine must have been ready once."""

    def __init__(
        self,
        *,
        name: str,
        engine: EngineClientProtocol,
        tokenizer: Tokenizer | None,
        template: ChatTemplate | None,
        config: dict[str, Any],
        generation_config: dict[str, Any],
        settings: ModelSettings,
        registry: Registry,
    ) -> None:
        ready = engine.ready
        assert ready is not None, "the engine is not ready"
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompter = Prompter(
            tokenizer, template, max_model_len=ready.max_model_len, vocab_size=ready.vocab_size, num_threads=settings.tokenizer_threads
        )
        self._eos_token_ids = eos_token_ids(tokenizer, config, generation_config, vocab_size=ready.vocab_size)
        self._grammars = GrammarChecker()
        self._ids = itertools.count()
        self._max_num_seqs = ready.max_num_seqs
        suggested = suggested_config(settings.generation_config, generation_config)
        self._info = ModelInfo(
            name=name,
            root=settings.model or name,
            created=int(time.time()),
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            max_logprobs=settings.max_logprobs,
            num_tokenizer_threads=settings.tokenizer_threads,
            sampling_defaults=sampling_defaults(suggested, settings.override_generation_config),
        )
        self._metrics = ModelMetrics(registry, name)
        self._metrics.describe_engine(ready)
        engine.add_stats_listener(self._metrics.on_stats)
        self._refreshers = registry.refreshers
        self._refreshers.append(self._refresh_metrics)

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def max_num_seqs(self) -> int:
        return self._max_num_seqs

    @property
    def is_alive(self) -> bool:
        return not self._engine.is_dead

    def generate(self, request: GenerateRequest) -> Generation:
        return LLMGeneration(request, self._engine, self._tokenizer, self._metrics, self._plan)

    async def tokenize(self, text: str, *, add_special_tokens: bool, is_bounded: bool = True) -> list[int]:
        return await self._prompter.tokenize(text, add_special_tokens=add_special_tokens, is_bounded=is_bounded)

    async def tokenize_chat(self, request: ChatPrompt) -> list[int]:
        return await self._prompter.tokenize_chat(request)

    async def render_chat(self, request: ChatPrompt) -> str:
        return await self._prompter.render(request)

    async def spans(self, text: str, *, add_special_tokens: bool) -> list[TextSpan]:
        return await self._prompter.spans(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        return await self._prompter.detokenize(token_ids)

    def token_strings(self, token_ids: list[int]) -> list[str]:
        tokenizer = self._prompter.tokenizer("return_token_strs")
        strings = {token_id: tokenizer.token_to_str(token_id) for token_id in dict.fromkeys(token_ids)}
        return [strings[token_id] for token_id in token_ids]

    async def spell(self, token_ids: list[int]) -> list[str]:
        return await self._prompter.run(partial(self.token_strings, token_ids), len(token_ids))

    def token_bytes(self, token_ids: list[int]) -> list[bytes]:
        return [b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id) for token_id in token_ids]

    def is_special(self, token_id: int) -> bool:
        return self._tokenizer is not None and token_id in self._tokenizer.special_ids

    async def probe(self, timeout_s: float) -> None:
        await self._engine.probe(timeout_s)

    async def close(self) -> None:
        if self._refresh_metrics in self._refreshers:
            self._refreshers.remove(self._refresh_metrics)
        self._prompter.close()
        self._grammars.close()
        await self._engine.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    async def _plan(self, request: GenerateRequest) -> Plan:
        arrived_at = time.monotonic()
        if self._engine.ready is None:
            raise NotReady("The engine is being restarted.")
        params = request.params
        if not -MAX_PRIORITY - 1 <= request.priority <= MAX_PRIORITY:
            raise InvalidRequest(f"priority must be from {-MAX_PRIORITY - 1} to {MAX_PRIORITY}, got {request.priority}.", param="priority")
        check_params(params, vocab_size=self._info.vocab_size, max_logprobs=self._info.max_logprobs)
        grammar = await self._grammar(params.structured_outputs)
        params = msgspec.structs.replace(params, structured_outputs=None)
        bad_words = await self._bad_words(params)
        check_choosable(params, eos_token_ids=self._eos_token_ids, bad_words=bad_words, vocab_size=self._info.vocab_size)
        if params.stop_strings:
            self._prompter.tokenizer("stop")
        prompt = await self._prompter.prompt(request)
        max_tokens = resolve_max_tokens(params, room=self._info.max_model_len - len(prompt.token_ids))
        num_sequences = 1 if params.is_greedy else request.n
        additions: list[AddRequest] = []
        choices: list[Choice] = []
        for index in range(num_sequences):
            own_params = child_params(params, index, vocab_size=self._info.vocab_size)
            addition = AddRequest(
                request_id=f"{next(self._ids)}-{request.request_id}",
                prompt_token_ids=prompt.token_ids,
                params=own_params,
                max_tokens=max_tokens,
                eos_token_ids=self._eos_token_ids,
                bad_words_token_ids=bad_words,
                priority=request.priority,
                cache_salt=request.cache_salt,
                grammar=grammar,
            )
            additions.append(addition)
            choices.append(self._choice(index, addition, own_params, arrived_at))
        return Plan(prompt, additions, choices, num_copies=request.n // num_sequences)

    async def _grammar(self, wanted: StructuredOutputsParams | None) -> str:
        """For the engine; empty where nothing is wanted. Raises `InvalidRequest` for what can't be compiled."""
        if wanted is None:
            return ""
        check_tokenizer(self._prompter.tokenizer(wanted.origin), wanted)
        return await self._grammars.check(wanted)

    async def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        words = params.bad_words
        if not words:
            return []
        encode = partial(bad_words_token_ids, words, self._prompter.tokenizer("bad_words"))
        return await self._prompter.run(encode, BAD_WORD_COST * len(words) + sum(map(len, words)))

    def _choice(self, index: int, addition: AddRequest, params: SamplingParams, arrived_at: float) -> Choice:
        clock = SequenceClock(self._metrics, arrived_at)
        return Choice(index, addition.request_id, params, self._tokenizer, addition.prompt_token_ids, clock)

    def _refresh_metrics(self) -> None:
        self._metrics.set_engine_up(is_up=self._engine.ready is not None)

"""`LLMBackend`: a language model behind an engine client. Prompts become tokens, tokens become text; the engine sees only tokens."""

from __future__ import annotations

import itertools
import time
from typing import Any

from trivium.backends.base import ChatPrompt, Generation, ModelInfo
from trivium.backends.llm_choice import Choice
from trivium.backends.llm_generation import LLMGeneration, Plan
from trivium.backends.llm_params import bad_words_token_ids, check_params, child_params, eos_token_ids, sampling_defaults, suggested_config
from trivium.backends.llm_prompt import Prompter
from trivium.client.protocol import EngineClientProtocol
from trivium.config import ModelSettings
from trivium.errors import NotReady
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.protocol.messages import AddRequest
from trivium.text import ChatTemplate, Tokenizer
from trivium.types import GenerateRequest, SamplingParams, check_token_ids


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
        self._prompter = Prompter(tokenizer, template, max_model_len=ready.max_model_len, vocab_size=ready.vocab_size)
        self._eos_token_ids = [token_id for token_id in eos_token_ids(tokenizer, config, generation_config) if token_id < ready.vocab_size]
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
            sampling_defaults=sampling_defaults(suggested, settings.override_generation_config),
        )
        self._metrics = ModelMetrics(registry, name)
        self._metrics.describe_engine(ready)
        engine.add_stats_listener(self._metrics.on_stats)
        registry.refreshers.append(self._refresh_metrics)

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

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return (await self._prompter.text(text, add_special_tokens=add_special_tokens)).token_ids

    async def tokenize_chat(self, request: ChatPrompt) -> list[int]:
        return (await self._prompter.chat(request)).token_ids

    async def detokenize(self, token_ids: list[int]) -> str:
        return await self._prompter.detokenize(token_ids)

    def token_strings(self, token_ids: list[int]) -> list[str]:
        tokenizer = self._prompter.tokenizer("return_token_strs")
        check_token_ids("tokens", token_ids, self._info.vocab_size)
        return [tokenizer.token_to_str(token_id) for token_id in token_ids]

    def token_bytes(self, token_ids: list[int]) -> list[bytes]:
        return [b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id) for token_id in token_ids]

    async def probe(self, timeout_s: float) -> None:
        await self._engine.probe(timeout_s)

    async def close(self) -> None:
        self._prompter.close()
        await self._engine.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    async def _plan(self, request: GenerateRequest) -> Plan:
        arrived_at = time.monotonic()
        if self._engine.ready is None:
            raise NotReady("The engine is being restarted.")
        params = request.params
        check_params(params, vocab_size=self._info.vocab_size, max_logprobs=self._info.max_logprobs)
        bad_words = bad_words_token_ids(params.bad_words, self._prompter.tokenizer("bad_words")) if params.bad_words else []
        if params.stop_strings:
            self._prompter.tokenizer("stop")
        prompt = await self._prompter.prompt(request)
        room = self._info.max_model_len - len(prompt.token_ids)
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
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
            )
            additions.append(addition)
            choices.append(self._choice(index, addition, own_params, arrived_at))
        return Plan(prompt, additions, choices, num_copies=request.n // num_sequences)

    def _choice(self, index: int, addition: AddRequest, params: SamplingParams, arrived_at: float) -> Choice:
        clock = SequenceClock(self._metrics, arrived_at)
        return Choice(index, addition.request_id, params, self._tokenizer, addition.prompt_token_ids, clock)

    def _refresh_metrics(self) -> None:
        self._metrics.set_engine_up(is_up=self._engine.ready is not None)

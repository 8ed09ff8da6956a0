"""The class `LLM`: checks, an engine process, results in the order of the prompts."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from trivium.backends.llm_choice import Choice
from trivium.backends.llm_params import (
    bad_words_token_ids,
    check_choosable,
    child_params,
    eos_token_ids,
    resolve_max_tokens,
    sampling_defaults,
    suggested_config,
)
from trivium.client.blocking import BlockingEngineClient
from trivium.config import EngineConfig
from trivium.errors import EngineDead, UnsupportedFeature
from trivium.llm import assembly
from trivium.llm.engine_args import engine_config
from trivium.llm.inputs import InputReader, Message, Prompt, TokenizedPrompt, render
from trivium.llm.progress import progress_bar
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.outputs import CompletionOutput, RequestOutput
from trivium.protocol.messages import AddRequest
from trivium.sources import resolve_for
from trivium.text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer
from trivium.types import SamplingParams

logger = logging.getLogger(__name__)


class LLM:
    """One model in an engine process of its own. Not thread-safe. Ends with `close()`, a `with` block, or garbage collection.

    Arguments are vLLM's engine arguments by name (`docs/configuration.md` lists them). Raises `ConfigError` for one that is unknown or asks for
    what Trivium can't do, `ModelLoadError` for a model that can't be loaded.
    """

    def __init__(self, model: str = "", **engine_args: Any) -> None:
        self.config: EngineConfig = engine_config(model, engine_args)
        settings = self.config.model
        files = resolve_for(settings)
        self._tokenizer = None if settings.skip_tokenizer_init else load_tokenizer(files, settings.tokenizer, hub=settings.hub)
        self._template = None
        if not settings.skip_tokenizer_init:
            self._template = load_chat_template(files, settings.tokenizer, override=settings.chat_template, hub=settings.hub)
        suggested = suggested_config(settings.generation_config, files.generation_config)
        self._defaults = sampling_defaults(suggested, settings.override_generation_config)
        self._client = BlockingEngineClient(self.config)
        # Not a bound method: that would keep the object alive for ever.
        self._finalizer = weakref.finalize(self, _close, self._client, self._template)
        ready = self._client.ready
        self._max_model_len = ready.max_model_len
        self._vocab_size = ready.vocab_size
        self._eos_token_ids = eos_token_ids(self._tokenizer, files.config, files.generation_config, vocab_size=ready.vocab_size)
        self._inputs = InputReader(
            self._tokenizer, vocab_size=ready.vocab_size, max_model_len=ready.max_model_len, max_logprobs=settings.max_logprobs
        )
        self._metrics = ModelMetrics(Registry(), files.name)
        self._num_requests = 0

    # -- generation ---------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; results in the order of the prompts.

        One `SamplingParams` for all, or one for each prompt. `priority` counts under `scheduling_policy="priority"`, lower first. Raises
        `InvalidRequest` (a ValueError) before anything runs if any prompt or parameter is wrong, `EngineDead` if the engine ends on the way.
        """
        _refuse("lora_request", lora_request)
        self._require_open()
        arrived_at = time.monotonic()
        items = self._inputs.prompts(prompts)
        params = self._inputs.params(self.get_default_sampling_params() if sampling_params is None else sampling_params, len(items))
        priorities = self._inputs.priorities(priority, len(items))
        if any(priorities) and self.config.scheduler.scheduling_policy != "priority":
            logger.warning('priority has no effect: the engine was started with scheduling_policy="%s"', self.config.scheduler.scheduling_policy)
        requests = [self._request(item, own, rank, arrived_at) for item, own, rank in zip(items, params, priorities, strict=True)]
        return self._run(assembly.Batch(requests, self._tokenizer), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, through the model's chat template. Content may be a list of text parts. Raises as `generate`."""
        _refuse("tools", tools)
        if chat_template_content_format not in ("auto", "string"):
            raise UnsupportedFeature("Only the content formats auto and string are supported.", param="chat_template_content_format")
        if self._tokenizer is None:
            raise UnsupportedFeature("chat needs a tokenizer, and skip_tokenizer_init leaves it out.", param="messages")
        template = self._template if chat_template is None else ChatTemplate.for_tokenizer(chat_template, self._tokenizer)
        if template is None:
            raise UnsupportedFeature("This model has no chat template; give one with chat_template.", param="messages")
        try:
            prompts = render(
                template,
                self._tokenizer,
                messages,
                max_tokens=self._max_model_len,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=chat_template_kwargs,
            )
        finally:
            if template is not self._template:
                template.close()
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, priority=priority)

    # -- what vLLM's users also call ----------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise UnsupportedFeature("There is no tokenizer: skip_tokenizer_init leaves it out.", param="skip_tokenizer_init")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where `generate` is given none: the model's generation_config, else the defaults of `SamplingParams`."""
        return msgspec.convert(self._defaults, SamplingParams)

    def reset_prefix_cache(self) -> None:
        self._require_open()
        self._client.reset_prefix_cache()

    def close(self) -> None:
        """Stop the engine. Safe to call twice."""
        self._finalizer()
        self._inputs.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise EngineDead("This LLM is closed.")

    def _request(self, prompt: TokenizedPrompt, params: SamplingParams, priority: int, arrived_at: float) -> assembly.Request:
        request_id = str(self._num_requests)
        self._num_requests += 1
        ids = prompt.token_ids
        max_tokens = resolve_max_tokens(params, room=self._max_model_len - len(ids))
        bad_words = bad_words_token_ids(params.bad_words, self.get_tokenizer()) if params.bad_words else []
        check_choosable(params, eos_token_ids=self._eos_token_ids, bad_words=bad_words, vocab_size=self._vocab_size)
        grammar = self._inputs.grammar(params.structured_outputs)
        sequences: list[assembly.Sequence] = []
        for index in range(params.n):
            own = msgspec.structs.replace(child_params(params, index, vocab_size=self._vocab_size), n=1, structured_outputs=None)
            addition = AddRequest(
                request_id=f"{request_id}-{index}",
                prompt_token_ids=ids,
                params=own,
                max_tokens=max_tokens,
                eos_token_ids=self._eos_token_ids,
                bad_words_token_ids=bad_words,
                priority=priority,
                cache_salt=prompt.cache_salt,
                grammar=grammar,
            )
            has_logprobs = params.logprobs is not None
            output = CompletionOutput(index, "", [], 0.0 if has_logprobs else None, [] if has_logprobs else None)
            choice = Choice(index, addition.request_id, own, self._tokenizer, ids, SequenceClock(self._metrics, arrived_at))
            sequences.append(assembly.Sequence(addition, choice, output))
        return assembly.Request(request_id, prompt.text, sequences, arrived_at)

    def _run(self, batch: assembly.Batch, use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        try:
            with progress_bar(len(batch.requests), use_tqdm) as advance:
                for addition in batch.additions:
                    self._client.add(addition)
                answers = self._client.outputs()
                while batch.is_open:
                    outputs = next(answers)
                    now = time.monotonic()
                    if num_done := sum(batch.take(output, now) for output in outputs):
                        advance(num_done)
                    if batch.cut:
                        self._client.abort(batch.cut)
                        batch.cut = []
        except EngineDead:
            raise
        except BaseException:
            # Ctrl-C, say: the next call must find an idle engine.
            self._client.give_up([addition.request_id for addition in batch.additions])
            raise
        return batch.results


def _close(client: BlockingEngineClient, template: ChatTemplate | None) -> None:
    client.close()
    if template is not None:
        template.close()


def _refuse(name: str, value: object) -> None:
    if value:
        raise UnsupportedFeature(f"{name} is not supported.", param=name)

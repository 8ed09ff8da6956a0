"""`LLM`: the engine without a server, with vLLM's signatures and results.

from trivium import LLM, SamplingParams

with LLM(model="path/to/model") as llm:
    outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8))
    print(outputs[0].outputs[0].text)
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, cast

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from trivium.backends.llm_choice import Choice, logprobs_dict
from trivium.backends.llm_params import bad_words_token_ids, check_params, child_params, eos_token_ids, sampling_defaults
from trivium.client.blocking import BlockingEngineClient
from trivium.config import EngineConfig
from trivium.config_io import build_engine_config
from trivium.errors import ConfigError, EngineDead, InvalidRequest, PromptTooLong, UnsupportedFeature
from trivium.metrics.instruments import Registry
from trivium.metrics.sequence import ModelMetrics, SequenceClock
from trivium.outputs import CompletionOutput, RequestMetrics, RequestOutput
from trivium.protocol.messages import AddRequest, TokenOutput
from trivium.sources import resolve
from trivium.text import Tokenizer, load_chat_template, load_tokenizer
from trivium.types import ChatMessage, FinishReason, SamplingParams, check_token_ids

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""
Message = Mapping[str, Any] | ChatMessage

_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "quantization": (None,),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "pipeline_parallel_size": (1,),
    "enable_chunked_prefill": (None, True),
    "disable_log_stats": (None, True, False),
    "swap_space": (0, 4),
    "cpu_offload_gb": (0,),
    "enable_lora": (False,),
    "max_lora_rank": (16,),
    "limit_mm_per_prompt": (None, {}),
    "speculative_config": (None,),
    "compilation_config": (None, {}),
    "hf_overrides": (None, {}),
    "disable_custom_all_reduce": (False, True),
    "distributed_executor_backend": (None, "mp", "uni"),
}
"""vLLM's engine arguments that Trivium has no use for, with the values that ask for nothing."""


_COLUMNS: Final = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


@dataclass(slots=True)
class _Sequence:
    """One of the n continuations while it grows."""

    choice: Choice
    output: CompletionOutput


@dataclass(slots=True)
class _Request:
    result: RequestOutput
    additions: list[AddRequest]
    sequences: list[_Sequence]
    num_open: int = 0


@dataclass(slots=True)
class _Batch:
    """The requests of one call, and where the outputs of each sequence go."""

    requests: list[_Request]
    by_id: dict[str, tuple[_Request, _Sequence]] = field(default_factory=dict)


class LLM:
    """One model in an engine process of its own. Not thread-safe. Ends with `close()`, a `with` block, or garbage collection.

    Arguments are vLLM's engine arguments by name (`docs/configuration.md` lists them). Raises `ConfigError` for one that is unknown or asks for
    what Trivium can't do, `ModelLoadError` for a model that can't be loaded.
    """

    def __init__(self, model: str = "", **engine_args: Any) -> None:
        self.config: EngineConfig = build_engine_config(model=model, **_without_neutral(engine_args))
        settings = self.config.model
        files = resolve(settings.model, settings.revision)
        self._tokenizer = None if settings.skip_tokenizer_init else load_tokenizer(files, settings.tokenizer)
        self._template = None if settings.skip_tokenizer_init else load_chat_template(files, settings.tokenizer, override=settings.chat_template)
        self._eos_token_ids = eos_token_ids(self._tokenizer, files.config, files.generation_config)
        suggested = {} if settings.generation_config == "vllm" else files.generation_config
        self._defaults = sampling_defaults(suggested, settings.override_generation_config)
        self._client = BlockingEngineClient(self.config)
        # Not a bound method: that would keep the object alive for ever.
        self._finalizer = weakref.finalize(self, BlockingEngineClient.close, self._client)
        self._ready = self._client.ready
        self._eos_token_ids = [token_id for token_id in self._eos_token_ids if token_id < self._ready.vocab_size]
        self._metrics = ModelMetrics(Registry(), files.name)
        self._num_requests = 0

    # -- generation ---------------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; results in the order of the prompts.

        One `SamplingParams` for all, or one for each prompt. Raises `InvalidRequest` (a ValueError) before anything runs if any prompt or
        parameter is wrong, `EngineDead` if the engine ends on the way.
        """
        if lora_request is not None:
            raise UnsupportedFeature("lora_request is not supported.", param="lora_request")
        items = _prompt_list(prompts)
        params = self._params_list(sampling_params, len(items))
        priorities = [0] * len(items) if priority is None else list(priority)
        if len(priorities) != len(items):
            raise InvalidRequest(f"priority has {len(priorities)} entries for {len(items)} prompts.", param="priority")
        arrived_at = time.monotonic()
        requests = [self._request(*self._tokenize(item), own, rank, arrived_at) for item, own, rank in zip(items, params, priorities, strict=True)]
        return self._run(_Batch(requests), show_progress=bool(use_tqdm))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, through the model's chat template. Raises as `generate`."""
        if tools:
            raise UnsupportedFeature("tools are not supported.", param="tools")
        if self._tokenizer is None:
            raise UnsupportedFeature("chat needs a tokenizer, and skip_tokenizer_init leaves it out.", param="messages")
        template = self._template
        if chat_template is not None:
            template = type(template).for_tokenizer(chat_template, self._tokenizer) if template else None
        if template is None:
            raise UnsupportedFeature("This model has no chat template; give one with chat_template.", param="messages")
        prompts: list[Prompt] = []
        for conversation in _conversations(messages):
            text = template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=chat_template_kwargs,
            )
            # The template writes the special tokens itself.
            prompts.append({"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    # -- what vLLM's users also call ----------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise UnsupportedFeature("There is no tokenizer: skip_tokenizer_init leaves it out.", param="skip_tokenizer_init")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where `generate` is given none: the model's generation_config, else the defaults of `SamplingParams`."""
        return msgspec.convert(self._defaults, SamplingParams)

    def reset_prefix_cache(self) -> None:
        self._client.reset_prefix_cache()

    def close(self) -> None:
        """Stop the engine. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------------------------------------

    def _params_list(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            given.validate()
            check_params(given, vocab_size=self._ready.vocab_size, max_logprobs=self.config.model.max_logprobs)
            return [given] * count
        if len(given) != count:
            raise InvalidRequest(f"There are {len(given)} sampling_params for {count} prompts.", param="sampling_params")
        for params in given:
            params.validate()
            check_params(params, vocab_size=self._ready.vocab_size, max_logprobs=self.config.model.max_logprobs)
        return list(given)

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        text: str | None = None
        ids: list[int] | None = None
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(prompt, Mapping):
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        else:
            ids = list(prompt)
        if ids is None:
            if not isinstance(text, str):
                raise InvalidRequest('A prompt is text, token ids, {"prompt": …} or {"prompt_token_ids": …}.', param="prompts")
            if self._tokenizer is None:
                raise UnsupportedFeature("Without a tokenizer (skip_tokenizer_init) prompts must be token ids.", param="prompts")
            ids = self._tokenizer.encode(text)
        check_token_ids("prompt_token_ids", ids, self._ready.vocab_size)
        if not ids:
            raise InvalidRequest("The prompt has no tokens.", param="prompts")
        if len(ids) >= self._ready.max_model_len:
            raise PromptTooLong(
                f"The prompt has {len(ids)} tokens, but prompt and output together hold {self._ready.max_model_len}.", param="prompts"
            )
        return text, ids

    def _request(self, text: str | None, ids: list[int], params: SamplingParams, priority: int, arrived_at: float) -> _Request:
        request_id = str(self._num_requests)
        self._num_requests += 1
        room = self._ready.max_model_len - len(ids)
        bad_words = bad_words_token_ids(params.bad_words, self.get_tokenizer()) if params.bad_words else []
        metrics = RequestMetrics(arrival_time=arrived_at)
        request = _Request(RequestOutput(request_id, text, ids, None, [], finished=False, metrics=metrics), [], [], num_open=params.n)
        for index in range(params.n):
            own = msgspec.structs.replace(child_params(params, index, vocab_size=self._ready.vocab_size), n=1)
            addition = AddRequest(
                request_id=f"{request_id}-{index}",
                prompt_token_ids=ids,
                params=own,
                max_tokens=room if own.max_tokens is None else min(room, own.max_tokens),
                eos_token_ids=self._eos_token_ids,
                bad_words_token_ids=bad_words,
                priority=priority,
            )
            wants_logprobs = params.logprobs is not None
            output = CompletionOutput(index, "", [], 0.0 if wants_logprobs else None, [] if wants_logprobs else None)
            choice = Choice(index, addition.request_id, own, self._tokenizer, ids, SequenceClock(self._metrics, arrived_at))
            request.additions.append(addition)
            request.sequences.append(_Sequence(choice, output))
            request.result.outputs.append(output)
        return request

    def _run(self, batch: _Batch, *, show_progress: bool) -> list[RequestOutput]:
        for request in batch.requests:
            for addition, sequence in zip(request.additions, request.sequences, strict=True):
                batch.by_id[addition.request_id] = (request, sequence)
                self._client.add(addition)
        try:
            with Progress(*_COLUMNS, console=Console(stderr=True), disable=not show_progress) as progress:
                task = progress.add_task("Processed prompts", total=len(batch.requests))
                for outputs in self._client.outputs():
                    now = time.monotonic()
                    num_done = sum(self._take(batch, output, now) for output in outputs)
                    if num_done:
                        progress.advance(task, num_done)
                    if not batch.by_id:
                        break
        except EngineDead:
            raise
        except BaseException:
            self._abandon(batch)
            raise
        return [request.result for request in batch.requests]

    def _take(self, batch: _Batch, output: TokenOutput, now: float) -> int:
        """Adds an output to its sequence. Returns 1 if that ended its request, else 0."""
        entry = batch.by_id.get(output.request_id)
        if entry is None:
            return 0  # cut by a stop string; the engine had not heard of it yet
        request, sequence = entry
        if output.error_message is not None:
            logger.error("request %s failed: %s", output.request_id, output.error_message)
        event = sequence.choice.consume(output, now)
        metrics = request.result.metrics
        assert metrics is not None
        if output.scheduled_at and metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = output.scheduled_at
        if event is None:
            return 0
        if metrics.first_token_time is None:
            metrics.first_token_time = now
            request.result.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None:
            request.result.prompt_logprobs = [None if entry is None else logprobs_dict(entry, self._tokenizer) for entry in output.prompt_logprobs]
        result = sequence.output
        result.text += event.text
        result.token_ids += event.token_ids
        if event.logprobs is not None and result.logprobs is not None:
            result.logprobs += event.logprobs
            chosen = sum(found[token_id].logprob for token_id, found in zip(event.token_ids, event.logprobs, strict=True))
            result.cumulative_logprob = (result.cumulative_logprob or 0.0) + chosen
        if event.finish_reason is None:
            return 0
        result.finish_reason, result.stop_reason = event.finish_reason.value, event.stop_reason
        del batch.by_id[output.request_id]
        if output.finish_reason is None:
            self._client.abort([output.request_id])
        request.num_open -= 1
        if request.num_open:
            return 0
        request.result.finished = True
        metrics.finished_time = now
        return 1

    def _abandon(self, batch: _Batch) -> None:
        """After an interruption: the next call must find an idle engine."""
        open_ids = set(batch.by_id)
        self._client.abort(list(batch.by_id))
        while open_ids:
            for output in next(self._client.outputs()):
                if output.finish_reason is not None:
                    open_ids.discard(output.request_id)


def _without_neutral(engine_args: dict[str, Any]) -> dict[str, Any]:
    for name, values in _NEUTRAL.items():
        if name in engine_args and engine_args[name] not in values:
            raise ConfigError(f"{name}={engine_args[name]!r} is not supported.", param=name)
    return {name: value for name, value in engine_args.items() if name not in _NEUTRAL}


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A single prompt may be given bare; a list of ints is one prompt of token ids."""
    if isinstance(prompts, str | Mapping):
        return [cast("Prompt", prompts)]
    items = list(cast("Sequence[Any]", prompts))
    return [items] if items and all(isinstance(item, int) for item in items) else items


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    items = list(cast("Sequence[Any]", messages))
    if items and isinstance(items[0], Mapping | ChatMessage):
        return [items]
    return items


__all__ = ["LLM", "CompletionOutput", "FinishReason", "RequestOutput", "SamplingParams"]

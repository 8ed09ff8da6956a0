"""Messages between a client and an engine host: msgpack arrays over local ZeroMQ sockets, one tagged union each way."""

from __future__ import annotations

import msgspec

from trivium.errors import TriviumError
from trivium.types import FinishReason, SamplingParams


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """First message of a client. The host answers with `EngineReady` once the model can run (`Progress` until then)."""


class AddRequest(msgspec.Struct, tag="add", array_like=True, kw_only=True, gc=False):
    """One sequence to continue. Everything is validated and resolved by the client: ids are in the vocabulary, defaults are filled in."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """At least 1; prompt and output together fit in `max_model_len`."""
    eos_token_ids: list[int] = []
    """End generation unless `params.ignore_eos`; masked until `min_tokens`."""
    bad_words_token_ids: list[list[int]] = []
    priority: int = 0
    """Lower runs earlier; only looked at under the `priority` policy."""
    cache_salt: str | None = None
    grammar: str = ""
    """What the output must look like, as `text.grammar.GrammarChecker` makes it; empty: whatever it likes. The engine does not look at
    `params.structured_outputs`."""


class Abort(msgspec.Struct, tag="abort", array_like=True, gc=False):
    """Drop these requests. Each still unfinished one is answered with a last output whose finish reason is `abort`."""

    request_ids: list[str]


class Probe(msgspec.Struct, tag="probe", array_like=True, frozen=True):
    """Answered by the engine's own loop: proof that it turns."""

    nonce: int


class ResetPrefixCache(msgspec.Struct, tag="reset_prefix_cache", array_like=True, frozen=True):
    """Forget every cached block that no request holds."""


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True, frozen=True):
    """Leave the loop at once; requests still running end as aborted."""


ToEngine = Hello | AddRequest | Abort | Probe | ResetPrefixCache | Shutdown


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Raw-distribution logprobs of one position: the token itself, then the top candidates, most likely first."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class TokenOutput(msgspec.Struct, array_like=True, omit_defaults=True, kw_only=True, gc=False):
    """New tokens of one request. The last output of a request has a `finish_reason`; nothing follows it."""

    request_id: str
    token_ids: list[int] = []
    finish_reason: str | None = None
    """A `types.FinishReason` value."""
    stop_reason: int | None = None
    """The stop token id that matched; None for EOS."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Whole prompt, first entry None; sent once, with the first token."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; sent with the first token."""
    scheduled_at: float = 0.0
    """`time.monotonic()` at which the request was (again) taken from the queue; sent once for each such time."""
    num_preemptions: int = 0
    """Sent with the last output."""
    error_slug: str | None = None
    error_message: str | None = None


class EngineStats(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """Gauges as of now, counters since the engine started (tokens unless named otherwise)."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that no request holds, cached ones included."""
    num_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_steps: int = 0
    step_tokens: list[int] = []
    """Tokens of each step since the last report."""


class StepOutputs(msgspec.Struct, tag="outputs", array_like=True):
    outputs: list[TokenOutput]
    stats: EngineStats | None = None


def refusal(request_id: str, error: TriviumError) -> StepOutputs:
    """The one and only answer to a request that never got as far as the scheduler."""
    return StepOutputs([TokenOutput(request_id=request_id, finish_reason=FinishReason.ERROR, error_slug=error.slug, error_message=error.message)])


class Progress(msgspec.Struct, tag="progress", array_like=True, frozen=True):
    """A long step of start-up; `total` 0 when unknown. `unit` is `bytes`, `graphs`, …"""

    stage: str
    done: int
    total: int
    unit: str = ""


class EngineReady(msgspec.Struct, tag="ready", array_like=True, kw_only=True):
    """What the engine can do, measured."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    device: str
    dtype: str
    memory: dict[str, int] = {}
    """Bytes by use: weights, workspace, graphs, kv_cache."""
    notes: list[str] = []
    """What was chosen automatically and why, one line each."""
    load_s: float = 0.0


class ProbeReply(msgspec.Struct, tag="probe_reply", array_like=True, frozen=True):
    nonce: int
    stats: EngineStats | None = None


class EngineFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The engine can't start or can't go on; the process ends after this."""

    slug: str
    message: str


FromEngine = StepOutputs | Progress | EngineReady | ProbeReply | EngineFailed

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    return _from_engine.decode(data)

"""What `trivium serve` says once it can answer: addresses, capacity, what was chosen, and a command to try."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from trivium import __version__
from trivium.cli.terminal import format_bytes
from trivium.config import ServerConfig
from trivium.protocol.messages import EngineReady

ROUTES = (
    ("API", "/v1"),
    ("docs", "/docs"),
    ("metrics", "/metrics"),
    ("health", "/health"),
    ("readiness", "/readyz"),
)


@dataclass(frozen=True)
class Capacity:
    """What the KV cache holds, in tokens and in whole conversations."""

    tokens: int
    max_concurrency: float
    """Sequences of the full context length that fit at once."""

    @classmethod
    def of(cls, ready: EngineReady) -> Capacity:
        tokens = ready.num_blocks * ready.block_size
        return cls(tokens, tokens / ready.max_model_len)


def base_url(host: str, port: int) -> str:
    """A URL that works on this machine for a server that listens on `host`."""
    name = {"0.0.0.0": "localhost", "::": "localhost", "": "localhost"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def curl_command(url: str, model: str, *, has_chat: bool, needs_key: bool) -> str:
    """A request to paste into a shell, quoted for it."""
    if has_chat:
        path, body = "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    else:
        path, body = "/v1/completions", {"model": model, "prompt": "The capital of France is", "max_tokens": 16}
    key = ["-H 'Authorization: Bearer YOUR_KEY'"] if needs_key else []
    return " \\\n    ".join([f"curl {url}{path}", "-H 'Content-Type: application/json'", *key, f"-d {shlex.quote(json.dumps(body))}"])


def ready_block(config: ServerConfig, ready: EngineReady, *, model: str, port: int, has_chat: bool, start_s: float) -> str:
    """The whole block for the terminal, without a trailing newline."""
    url = base_url(config.http.host, port)
    capacity = Capacity.of(ready)
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in ready.memory.items())
    lines = [
        f"Trivium {__version__} is ready after {start_s:.1f} s: {url}",
        "",
        *[f"  {name:<12}{url}{path}" for name, path in ROUTES],
        "",
        f"  {'model':<12}{model}, {ready.dtype} on {ready.device}, up to {ready.max_model_len:,} tokens a request",
        f"  {'KV cache':<12}{capacity.tokens:,} tokens, {capacity.max_concurrency:,.1f} full contexts; at most {ready.max_num_seqs:,} sequences",
    ]
    if memory:
        lines.append(f"  {'memory':<12}{memory}")
    lines += [f"  {'chosen' if index == 0 else '':<12}{note}" for index, note in enumerate(ready.notes)]
    curl = curl_command(url, model, has_chat=has_chat, needs_key=bool(config.http.api_key))
    return "\n".join([*lines, "", "Try it:", "", f"  {curl}"])

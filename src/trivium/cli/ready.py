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
NEED_KEY = ("/v1", "/docs")
"""Those of them that ask for the API key, where there is one."""


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


def is_open(config: ServerConfig) -> bool:
    """Whether anybody who reaches this machine may use the server."""
    return config.http.host in ("0.0.0.0", "::", "") and not config.http.api_key


OPEN_WARNING = "listening on all interfaces, no API key"


def facts(ready: EngineReady, *, model: str) -> list[tuple[str, str]]:
    """What was loaded and chosen: names and texts."""
    capacity = Capacity.of(ready)
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in ready.memory.items())
    return [
        ("model", f"{model}, {ready.dtype} on {ready.device}, up to {ready.max_model_len:,} tokens a request"),
        ("KV cache", f"{capacity.tokens:,} tokens, {capacity.max_concurrency:,.1f} full contexts; at most {ready.max_num_seqs:,} sequences"),
        *([("memory", memory)] if memory else []),
        *[("chosen" if index == 0 else "", note) for index, note in enumerate(ready.notes)],
    ]


def ready_block(config: ServerConfig, ready: EngineReady, *, model: str, port: int, has_chat: bool, start_s: float) -> str:
    """The whole block for the terminal, without a trailing newline."""
    url = base_url(config.http.host, port)
    needs_key = bool(config.http.api_key)
    lines = [
        f"Trivium {__version__} is ready after {start_s:.1f} s: {url}",
        *([f"  {OPEN_WARNING}"] if is_open(config) else []),
        "",
        *[f"  {name:<12}{url}{path}{' (needs the API key)' if needs_key and path in NEED_KEY else ''}" for name, path in ROUTES],
        "",
        *[f"  {name:<12}{text}" for name, text in facts(ready, model=model)],
    ]
    curl = curl_command(url, model, has_chat=has_chat, needs_key=needs_key)
    return "\n".join([*lines, "", "Try it:", "", f"  {curl}"])

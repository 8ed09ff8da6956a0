"""What the `text_generation` client library gets from a server, as one JSON object on standard output: `python helpers_legacy_client.py URL`.

Run by a process of its own: the library is installed beside the test environment (scripts/setup.sh), since its metadata, though not its code,
asks for a huggingface_hub of years ago.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def outcome(call: Callable[[], Any]) -> str:
    """Name of the class that the call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def report(url: str) -> dict[str, Any]:
    library: Any = import_module("text_generation")
    client = library.Client(url, timeout=20)
    whole = client.generate("abcdef", max_new_tokens=4, decoder_input_details=True, top_n_tokens=2)
    best = client.generate("abcdef", max_new_tokens=4, best_of=2, do_sample=True)
    streamed = list(client.generate_stream("a你😀", max_new_tokens=9, stop_sequences=["zz"]))

    async def from_async_client() -> list[str]:
        other = library.AsyncClient(url, timeout=20)
        answer = await other.generate("abc", max_new_tokens=2)
        return [answer.generated_text, *[event.token.text async for event in other.generate_stream("abc", max_new_tokens=2)]]

    chat = client.chat(messages=[{"role": "user", "content": "x"}], max_tokens=4, temperature=0.0)
    return {
        "text": whole.generated_text,
        "finish_reason": whole.details.finish_reason.value,
        "prefill": [token.logprob for token in whole.details.prefill],
        "tokens": [token.text for token in whole.details.tokens],
        "top_tokens": [[token.id for token in step] for step in whole.details.top_tokens],
        "num_best_of_sequences": len(best.details.best_of_sequences),
        "streamed": "".join(event.token.text for event in streamed if not event.token.special),
        "streamed_text": streamed[-1].generated_text,
        "streamed_tokens": streamed[-1].details.generated_tokens,
        "from_async_client": asyncio.run(from_async_client()),
        "chat": chat.choices[0].message.content,
        "errors": {
            "validation": outcome(lambda: client.generate("abc", max_new_tokens=5000)),
            "validation_of_stream": outcome(lambda: list(client.generate_stream("abc", max_new_tokens=5000))),
            "generation": outcome(lambda: client.generate("!fail abc", max_new_tokens=9)),
            "generation_in_stream": outcome(lambda: list(client.generate_stream("!fail abc", max_new_tokens=9))),
            "unhealthy": outcome(lambda: client.generate("!die abc", max_new_tokens=9)),
        },
    }


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1])))

"""A closed-loop load on any OpenAI server: N clients, each sending its next streamed completion when the last one has ended.

    python benchmarks/serving_load.py --url http://127.0.0.1:8000 --model NAME --concurrency 1 8 32 --input-len 128 --output-len 64

Prompts are random token ids, so nothing hits a prefix cache and both servers tokenize nothing. Figures have vLLM's definitions: TTFT from just
before the request is sent to the first chunk with a choice, TPOT (E2E − TTFT) / (tokens − 1), ITL every gap between chunks. Uses the standard
library alone, so that a load from the same machine costs as little as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Timing:
    """One request, seconds."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def tpot(self) -> float:
        return (self.arrivals[-1] - self.arrivals[0]) / max(self.num_tokens - 1, 1)

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(slots=True)
class Summary:
    """Milliseconds, and output tokens per second over the whole run."""

    concurrency: int
    num_requests: int
    out_tok_s: float
    ttft_median: float
    ttft_p99: float
    tpot_median: float
    itl_median: float
    itl_p99: float


@dataclass(frozen=True, slots=True)
class Load:
    url: str
    model: str
    input_len: int
    output_len: int
    vocab_size: int
    temperature: float = 0.0


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


async def complete(load: Load, seed: int) -> Timing:
    """One streamed completion over a connection of its own. Raises RuntimeError for an answer that is not 200 or not whole."""
    source = random.Random(seed)
    body = json.dumps(
        {
            "model": load.model,
            "prompt": [source.randrange(100, load.vocab_size) for _ in range(load.input_len)],
            "max_tokens": load.output_len,
            "temperature": load.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    parts = urlsplit(load.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    timing = Timing(sent=time.perf_counter())
    writer.write(head.encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status.decode().strip()}: {(await reader.read()).decode()[-400:]}")
    async for line in reader:
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            if b'"choices":[]' in line or b'"choices": []' in line:
                timing.num_tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            else:
                timing.arrivals.append(now)
    writer.close()
    if timing.num_tokens != load.output_len:
        raise RuntimeError(f"{timing.num_tokens} tokens instead of {load.output_len}")
    return timing


async def closed_loop(load: Load, concurrency: int, num_requests: int, *, seed: int) -> Summary:
    seeds = iter(range(seed, seed + num_requests))
    timings: list[Timing] = []

    async def client() -> None:
        for own in seeds:
            timings.append(await complete(load, own))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    took = time.perf_counter() - begin
    gaps = [gap for timing in timings for gap in timing.gaps] or [0.0]
    ttfts = [timing.ttft for timing in timings]
    return Summary(
        concurrency=concurrency,
        num_requests=num_requests,
        out_tok_s=round(sum(timing.num_tokens for timing in timings) / took, 1),
        ttft_median=round(1e3 * statistics.median(ttfts), 2),
        ttft_p99=round(1e3 * percentile(ttfts, 0.99), 2),
        tpot_median=round(1e3 * statistics.median(timing.tpot for timing in timings), 3),
        itl_median=round(1e3 * statistics.median(gaps), 3),
        itl_p99=round(1e3 * percentile(gaps, 0.99), 3),
    )


def measure(load: Load, concurrencies: list[int], *, rounds: int = 4, num_warmups: int = 2) -> list[Summary]:
    """`rounds` requests per client at each concurrency (8 at least), after `num_warmups` requests that don't count."""

    async def run() -> list[Summary]:
        seed = time.time_ns() % 1_000_000_007
        for warmup in range(num_warmups):
            await complete(load, seed - 1 - warmup)
        return [await closed_loop(load, each, max(8, rounds * each), seed=seed + 100_000 * each) for each in concurrencies]

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    load = Load(args.url, args.model, args.input_len, args.output_len, args.vocab_size)
    for summary in measure(load, args.concurrency, rounds=args.rounds):
        print(json.dumps(asdict(summary)))


if __name__ == "__main__":
    main()

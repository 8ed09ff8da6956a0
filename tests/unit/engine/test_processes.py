"""Real engine processes: two ranks agree with one, a killed engine fails its requests and comes back, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers_engine import checkpoint_folder

from trivium import LLM, SamplingParams
from trivium.client.engine_client import EngineClient
from trivium.config_io import build_engine_config
from trivium.errors import ConfigError, EngineDead, ModelLoadError, NotReady
from trivium.protocol.messages import AddRequest

ARGS: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "num_threads": 1, "skip_tokenizer_init": True}
PROMPTS = [[1, 2, 3], list(range(40)), [7] * 17]
SRC = Path(__file__).parents[3] / "src"
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


def token_ids(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def engine_pids() -> set[int]:
    """Processes that run an engine or a rank of one and whose command names a socket folder of ours."""
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and b"-m" in words and any(word.startswith(b"trivium.engine") for word in words) and _is_child(int(folder.name)):
                found.add(int(folder.name))
    return found


def _is_child(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "deepseek-v3"])
def test_two_ranks_generate_what_one_does(name: str) -> None:
    with LLM(model=checkpoint_folder(name), **ARGS) as one:
        expected = token_ids(one)
    with LLM(model=checkpoint_folder(name), tensor_parallel_size=2, **ARGS) as two:
        assert token_ids(two) == expected


def test_a_killed_rank_takes_the_engine_down_and_leaves_nothing() -> None:
    llm = LLM(model=checkpoint_folder("llama"), tensor_parallel_size=2, **ARGS)
    ranks = engine_pids() - {llm._client._process.pid}
    assert len(ranks) == 1
    os.kill(ranks.pop(), signal.SIGKILL)
    with pytest.raises(EngineDead):
        token_ids(llm)
    llm.close()
    assert not engine_pids()


def test_collecting_an_llm_ends_its_engine() -> None:
    llm = LLM(model=checkpoint_folder("llama"), **ARGS)
    assert engine_pids()
    del llm
    gc.collect()
    assert not engine_pids()


def test_what_is_wrong_with_a_model_is_raised_where_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        LLM(model=str(tmp_path), **ARGS)
    with pytest.raises(ConfigError, match="does not divide"):
        LLM(model=checkpoint_folder("llama"), tensor_parallel_size=3, **ARGS)
    assert not engine_pids()


def request(name: str, max_tokens: int) -> AddRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=name, prompt_token_ids=[1, 2, 3], params=params, max_tokens=max_tokens)


async def collect(client: EngineClient, name: str, max_tokens: int) -> list[int]:
    return [token async for output in client.submit(request(name, max_tokens)) for token in output.token_ids]


def test_a_killed_engine_fails_what_is_in_flight_and_is_back_with_the_same_answers() -> None:
    async def scenario() -> None:
        client = await EngineClient.start(build_engine_config(model=checkpoint_folder("llama"), **ARGS))
        try:
            before = await collect(client, "a", 8)
            running = asyncio.create_task(collect(client, "b", 500))
            await asyncio.sleep(0.1)
            assert client._process is not None
            killed_at = time.monotonic()
            os.kill(client._process.pid, signal.SIGKILL)
            with pytest.raises(EngineDead, match="signal 9"):
                await running
            assert time.monotonic() - killed_at < 1.0
            assert client.is_dead
            with pytest.raises(NotReady):
                await client.probe(1.0)
            while client.ready is None:
                await asyncio.sleep(0.05)
            assert client.num_restarts == 1
            assert not client.is_dead
            assert await collect(client, "a", 8) == before
        finally:
            await client.close()

    asyncio.run(scenario())
    assert not engine_pids()


def test_a_stopped_engine_is_killed_after_the_timeout_and_is_back() -> None:
    async def scenario() -> None:
        client = await EngineClient.start(build_engine_config(model=checkpoint_folder("llama"), hang_timeout_s=2.0, **ARGS))
        try:
            assert client._process is not None
            await asyncio.sleep(3.0)  # idle, but it answers when it is asked
            assert client.num_restarts == 0
            running = asyncio.create_task(collect(client, "b", 500))
            await asyncio.sleep(0.1)
            os.kill(client._process.pid, signal.SIGSTOP)
            with pytest.raises(EngineDead):
                await asyncio.wait_for(running, 10)
            while client.ready is None:
                await asyncio.sleep(0.05)
            assert len(await collect(client, "a", 8)) == 8
        finally:
            await client.close()

    asyncio.run(scenario())
    assert not engine_pids()


def test_an_engine_that_can_not_be_started_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from trivium.client import engine_client

    monkeypatch.setattr(engine_client, "MAX_FAILED_STARTS", 2)
    monkeypatch.setattr(engine_client, "FIRST_RESTART_DELAY_S", 0.01)

    async def scenario() -> None:
        client = await EngineClient.start(build_engine_config(model=checkpoint_folder("llama"), **ARGS))
        given_up = asyncio.Event()
        client.on_give_up = given_up.set
        client.config = build_engine_config(model="/nowhere", **ARGS)
        assert client._process is not None
        client._process.kill()
        await asyncio.wait_for(given_up.wait(), 60)
        assert client.is_dead
        with pytest.raises(NotReady, match="nowhere"):
            await collect(client, "a", 8)
        await client.close()

    asyncio.run(scenario())


def test_an_engine_whose_parent_was_killed_leaves_no_folder() -> None:
    code = (
        "import os, signal, sys, json\n"
        "from trivium import LLM\n"
        "llm = LLM(**json.loads(sys.argv[1]))\n"
        "print(llm._client._process.folder, llm._client._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = json.dumps({"model": checkpoint_folder("llama"), **ARGS})
    done = subprocess.run(
        [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SRC)}
    )
    folder, pid = done.stdout.split()
    deadline = time.monotonic() + 10
    while Path(folder).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_closing_a_stream_frees_its_blocks_at_once() -> None:
    async def scenario() -> None:
        client = await EngineClient.start(build_engine_config(model=checkpoint_folder("llama"), **ARGS))
        try:
            stream = client.submit(request("a", 500))
            await anext(stream)
            await stream.aclose()
            stats = await client.probe(1.0)
            assert (stats.num_running, stats.num_free_blocks) == (0, stats.num_blocks)
        finally:
            await client.close()

    asyncio.run(scenario())


def test_an_idle_engine_uses_no_processor_time() -> None:
    def cpu_seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with LLM(model=checkpoint_folder("llama"), **ARGS) as llm:
        token_ids(llm)
        pid = llm._client._process.pid
        time.sleep(0.3)
        before = cpu_seconds(pid)
        time.sleep(2.0)
        assert cpu_seconds(pid) - before <= 0.02

"""The other ranks of a tensor-parallel engine: processes that replay the plans of rank 0.

Rank 0 schedules and broadcasts each plan before it runs it; ranks cannot disagree. Every rank samples from the same gathered logits with
the same counters, so no token travels back. A rank that ends takes the engine down with it: rank 0 is the only one the client watches.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec
import torch
import zmq
from torch import distributed as dist

from trivium.config import EngineConfig
from trivium.errors import EngineDead
from trivium.ops.collective import ParallelContext
from trivium.ops.peers import connect_peers
from trivium.scheduling.step import StepPlan

logger = logging.getLogger(__name__)

READY = b"ready"


def join_ranks(config: EngineConfig, rank: int, store_path: Path | None) -> ParallelContext:
    """Blocks until all ranks have joined; a single rank joins nothing. The meeting point is a file in a private folder."""
    size = config.parallel.tensor_parallel_size
    if size == 1:
        return ParallelContext()
    assert store_path is not None
    is_gpu = config.device != "cpu" and torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(store_path), size)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("nccl" if is_gpu else "gloo", store=store, rank=rank, world_size=size)
    group = dist.group.WORLD
    assert group is not None
    peers = connect_peers(group, torch.device("cuda", rank)) if is_gpu else None
    return ParallelContext(rank, size, group, peers)


class RankProcesses:
    """Ranks 1 and up, as `python -m trivium.engine.follow`. Started at once, so that they load while rank 0 does."""

    def __init__(self, config: EngineConfig) -> None:
        size = config.parallel.tensor_parallel_size
        self.folder = Path(tempfile.mkdtemp(prefix="trivium-ranks-"))
        self.store_path = self.folder / "store"
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_closing = False
        for rank in range(1, size):
            self._start(config, rank)

    def _start(self, config: EngineConfig, rank: int) -> None:
        address = f"ipc://{self.folder / f'rank{rank}.sock'}"
        socket = self._context.socket(zmq.PAIR)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        command = [sys.executable, "-m", "trivium.engine.follow", address, str(rank), str(self.store_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()  # stays open: its end tells the rank that rank 0 is gone
        threading.Thread(target=self._watch, args=(process, rank), name=f"rank-{rank}-watch", daemon=True).start()
        self._sockets.append(socket)
        self._processes.append(process)

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        code = process.wait()
        if not self._is_closing:
            # The main thread may sit in a collective that will never end, so there is nobody left to raise to.
            logger.error("rank %d ended unexpectedly (exit code %d); the engine stops", rank, code)
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1)

    def wait_until_ready(self) -> None:
        for socket in self._sockets:
            if socket.recv() != READY:
                raise EngineDead("A rank answered something else than that it is ready.")

    def send(self, plan: StepPlan) -> None:
        data = msgspec.msgpack.encode(plan)
        for socket in self._sockets:
            socket.send(data)

    def prepare(self, grammar: str) -> None:
        """Have them compile a grammar that a plan is going to need."""
        for socket in self._sockets:
            socket.send(msgspec.msgpack.encode(grammar))

    def close(self) -> None:
        self._is_closing = True
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()
        for socket in self._sockets:
            socket.close()
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)

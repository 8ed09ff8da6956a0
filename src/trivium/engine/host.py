"""The engine process: reads its config from standard input, builds the engine, turns its loop, and ends with its parent."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trivium import log
from trivium.config import EngineConfig
from trivium.engine.core import EngineCore
from trivium.engine.grammar_gate import GrammarGate
from trivium.engine.mailbox import ZmqMailbox
from trivium.errors import InternalError, TriviumError
from trivium.protocol.messages import EngineFailed, Hello, Progress

logger = logging.getLogger(__name__)


def main() -> None:
    """`python -m trivium.engine ADDRESS`, config as one line of JSON on standard input."""
    log.setup()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    mailbox = ZmqMailbox(sys.argv[1])
    client = _wait_for_client(mailbox)
    try:
        core = _build(config, mailbox, lambda progress: mailbox.send(client, progress))
        mailbox.send(client, core.greeting)
        core.add_client(client)
        gc.collect()
        gc.freeze()  # the model's objects never die; the collector need not look at them again
        core.run()
    except Exception as error:
        if not isinstance(error, TriviumError):
            logger.exception("the engine failed")
            error = InternalError(f"The engine failed: {type(error).__name__}: {error}")
        mailbox.send(client, EngineFailed(error.slug, error.message))
        mailbox.close()
        sys.exit(1)
    mailbox.close()


def end_with_parent() -> None:
    """Ends this process when standard input does."""
    # Nothing is written to the pipe after the config: it only ever ends, when the parent closes it or dies.
    # Read below the buffered reader, whose lock a thread must not hold while the interpreter shuts down.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # The parent may have been killed, and then nobody else removes the socket's folder, which is ours alone.
    shutil.rmtree(Path(sys.argv[1].removeprefix("ipc://")).parent, ignore_errors=True)
    os._exit(0)


def _wait_for_client(mailbox: ZmqMailbox) -> bytes:
    while True:
        for client, message in mailbox.receive(block=True):
            if isinstance(message, Hello):
                return client


def _build(config: EngineConfig, mailbox: ZmqMailbox, report: Callable[[Progress], None]) -> EngineCore:
    begin = time.monotonic()
    report(Progress("importing torch", 0, 0))
    from trivium.engine.build import build_engine  # torch takes seconds to import: the client hears of it first

    engine = build_engine(config, report)
    engine.ready.load_s = time.monotonic() - begin
    core = EngineCore(engine.scheduler, engine.executor, mailbox, pipeline_depth=config.scheduler.pipeline_depth, greeting=engine.ready)
    if engine.grammars is not None:
        core.grammars = GrammarGate(engine.grammars, mailbox.wake, engine.tell_grammar)
        engine.grammars.warm()
    return core

"""A rank above 0: `python -m trivium.engine.follow ADDRESS RANK STORE`, config as one line of JSON on standard input."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from pathlib import Path

import msgspec
import zmq

from trivium import log
from trivium.config import EngineConfig
from trivium.engine.host import end_with_parent
from trivium.engine.rank import build_rank
from trivium.engine.ranks import READY, join_ranks
from trivium.errors import TriviumError
from trivium.scheduling.step import StepPlan

logger = logging.getLogger("trivium.engine.follow")


def main() -> None:
    """Runs every plan it is sent, until its parent goes away."""
    address, rank, store = sys.argv[1:4]
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    log.setup()
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(address)
    try:
        built = build_rank(config, join_ranks(config, int(rank), Path(store)), lambda _: None)
    except TriviumError as error:
        # What is wrong with the settings or the model is wrong on every rank; rank 0 tells the client.
        logger.error("rank %s: %s", rank, error.message)
        sys.exit(1)
    gc.collect()
    gc.freeze()
    socket.send(READY)
    if built.grammars is not None:
        built.grammars.warm()
    decoder = msgspec.msgpack.Decoder(StepPlan | str)  # a plan, or a grammar to compile
    while True:
        message = decoder.decode(socket.recv())
        if not isinstance(message, str):
            built.runner.launch(message)
        elif built.grammars is not None:
            built.grammars.prepare(message)


if __name__ == "__main__":
    main()

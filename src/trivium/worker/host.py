"""The worker process: loads one version of a model, runs batches on its instances, and ends with the server or when told to."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

from trivium import log
from trivium.errors import InternalError, ModelLoadError, TriviumError
from trivium.protocol.shared_region import SharedRegion
from trivium.protocol.worker_messages import BatchDone, InstanceSetup, Loaded, LoadFailed, Progress, Setup, WireResponse
from trivium.worker.link import Link
from trivium.worker.runtime import Instance, Model, load_model

logger = logging.getLogger(__name__)

END_TIMEOUT_S: Final = 10.0
"""How long a model may go on after the server has gone."""


def main() -> None:
    """`python -m trivium.worker SOCKET,INBOUND,OUTBOUND …`: descriptors of each instance; the first one's link brings the `Setup`."""
    log.setup()
    _volunteer()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    links = [_open_link(argument) for argument in sys.argv[1:]]
    first = links[0]
    if not first.pump(lambda: first.setup is not None):
        return
    setup = first.setup
    assert setup is not None
    assert len(setup.instances) == len(links)
    try:
        first.send(Progress("loading"))
        model = load_model(setup)
    except Exception as error:
        _report_failure(links, error)
        sys.exit(1)
    others = [
        threading.Thread(target=_serve, args=(model, instance, link, setup), name=instance.name)
        for instance, link in zip(setup.instances[1:], links[1:], strict=True)
    ]
    for thread in others:
        thread.start()
    _serve(model, setup.instances[0], first, setup)
    for thread in others:
        thread.join()


def _open_link(argument: str) -> Link:
    sock, inbound, outbound = (int(descriptor) for descriptor in argument.split(","))
    return Link(socket.socket(fileno=sock), SharedRegion.open(inbound), SharedRegion.open(outbound))


def _serve(model: Model, instance_setup: InstanceSetup, link: Link, setup: Setup) -> None:
    try:
        instance = model.create_instance(instance_setup, link)
    except Exception as error:
        _report_failure([link], error)
        return
    gc.collect()
    gc.freeze()  # the model's objects don't die before the process; the collector need not look at them again
    with contextlib.suppress(OSError):  # the server has gone
        link.send(Loaded(model.config_json))
        _run(instance, link)
    instance.close()


def _run(instance: Instance, link: Link) -> None:
    while (batch := link.next_batch()) is not None:
        done = instance.run(batch)
        try:
            link.send(done)
        except (TypeError, ValueError, OverflowError) as error:  # something in the model's answer can't be encoded
            failure = WireResponse(slug=InternalError.slug, message=f"the model's answer can't be sent: {type(error).__name__}")
            link.send(BatchDone(done.first_key, [failure for _ in batch.requests], done.begin_ns, done.end_ns))


def _report_failure(links: list[Link], error: Exception) -> None:
    if not isinstance(error, TriviumError):
        error = ModelLoadError(f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode())
    for link in links:
        with contextlib.suppress(OSError):
            link.send(LoadFailed(error.slug, error.message))


def _volunteer() -> None:
    """If the machine runs out of memory, a worker is the one to go: it is started again, the server isn't."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _end_with_parent() -> None:
    """Ends this process some time after standard input has ended, whatever the model does."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    time.sleep(END_TIMEOUT_S)
    os._exit(1)

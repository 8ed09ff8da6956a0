"""A job as a line of JSON on standard input; progress, then the outcome, as lines of JSON on standard output."""

from __future__ import annotations

import sys

import msgspec

from trivium import log
from trivium.errors import TriviumError
from trivium.quantization.job import JobDone, JobFailed, JobMessage, JobProgress, QuantizeJob
from trivium.quantization.run import quantize


def _send(message: JobMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=QuantizeJob)
    log.setup()
    try:
        num_bytes = quantize(job, lambda stage, done, total, unit: _send(JobProgress(stage, done, total, unit)))
    except TriviumError as error:
        _send(JobFailed(error.slug, error.message))
        return 1
    _send(JobDone(job.output, num_bytes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

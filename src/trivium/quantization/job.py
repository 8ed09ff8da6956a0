"""What `trivium quantize` asks for, and what it hears back. No torch here: the command line imports this module."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Method = Literal["awq", "gptq", "nf4", "fp8"]
CALIBRATED: Final = ("awq", "gptq")


class QuantizeJob(msgspec.Struct, kw_only=True, frozen=True):
    """`model`: folder, .gguf file or hub name; `output`: a folder that is not there yet, or empty."""

    model: str
    output: str
    method: Method
    revision: str | None = None
    calibration: str | None = None
    """Text file; AWQ and GPTQ need one."""
    group_size: int = 0
    """Inputs that share a scale; -1: all; 0: the largest of 128, 64 and 32 that divides every layer's inputs. AWQ and GPTQ only."""
    act_order: bool = False
    """GPTQ: the inputs that matter most are rounded first."""
    num_samples: int = 128
    sequence_length: int = 512
    device: str = "auto"


class JobProgress(msgspec.Struct, tag="progress", frozen=True):
    stage: str
    done: int
    total: int
    unit: str


class JobDone(msgspec.Struct, tag="done", frozen=True):
    path: str
    num_bytes: int


class JobFailed(msgspec.Struct, tag="failed", frozen=True):
    """`slug` is that of the error's class."""

    slug: str
    message: str


JobMessage = JobProgress | JobDone | JobFailed

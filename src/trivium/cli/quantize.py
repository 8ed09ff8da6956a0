"""`trivium quantize MODEL OUT`: a quantized checkpoint. The work is done by a process of its own, which imports torch."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import msgspec

from trivium import env, log
from trivium.cli.terminal import Steps, format_bytes
from trivium.errors import ConfigError, InternalError, error_from_slug
from trivium.quantization.job import CALIBRATED, JobDone, JobFailed, JobMessage, JobProgress, Method, QuantizeJob


@click.command(name="quantize", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.argument("output")
@click.option("--method", type=click.Choice(["awq", "gptq", "nf4", "fp8"]), required=True, help="How weights are kept: 4 bits, or 8 (fp8).")
@click.option("--calibration", metavar="FILE", help="Text like what the model will read; awq and gptq need one.")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@click.option("--group-size", type=int, default=0, help="Inputs that share a scale, -1: all. [default: the largest of 128, 64, 32 that fits]")
@click.option("--act-order", is_flag=True, help="gptq: round the inputs that matter most first.")
@click.option("--samples", "num_samples", type=click.IntRange(1), default=128, show_default=True, help="Pieces of the text that are looked at.")
@click.option("--sequence-length", type=click.IntRange(16), default=512, show_default=True, help="Tokens of a piece.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    *,
    model: str,
    output: str,
    method: Method,
    calibration: str | None,
    revision: str | None,
    group_size: int,
    act_order: bool,
    num_samples: int,
    sequence_length: int,
    device: str,
    as_json: bool,
) -> None:
    """Quantize MODEL (a folder, a .gguf file or a hub name) into the new folder OUTPUT, which transformers, vLLM and Trivium can load.

    Prints the path on standard output.
    """
    if method in CALIBRATED and calibration is None:
        raise ConfigError(f"--method {method} needs --calibration FILE.", param="calibration")
    if method not in CALIBRATED and (calibration is not None or group_size != 0):
        raise ConfigError(f"--method {method} takes neither --calibration nor --group-size.", param="method")
    if act_order and method != "gptq":
        raise ConfigError("--act-order goes with --method gptq only.", param="act_order")
    log.setup()
    job = QuantizeJob(
        model=model,
        output=output,
        method=method,
        revision=revision,
        calibration=calibration,
        group_size=group_size,
        act_order=act_order,
        num_samples=num_samples,
        sequence_length=sequence_length,
        device=device,
    )
    done = _run(job)
    click.echo(json.dumps({"path": done.path, "weight_bytes": done.num_bytes}) if as_json else done.path)
    if not as_json:
        click.echo(f"{format_bytes(done.num_bytes)} of weights", err=True)


def _run(job: QuantizeJob) -> JobDone:
    """Raises the error that the process reports."""
    command_line = [sys.executable, "-m", "trivium.quantization"]
    decoder = msgspec.json.Decoder(JobMessage)
    with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env.child()) as process, Steps() as steps:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.close()
        outcome: JobDone | JobFailed | None = None
        for line in process.stdout:
            message = decoder.decode(line)
            if isinstance(message, JobProgress):
                steps.update(message.stage, message.done, message.total, message.unit)
            else:
                outcome = message
    if isinstance(outcome, JobFailed):
        raise error_from_slug(outcome.slug, outcome.message)
    if outcome is None:
        raise InternalError(f"The process that quantizes ended with exit code {process.returncode}; its messages are above.")
    return outcome

"""`trivium init KIND …`: a model where a repository wants it, ready to be served."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from trivium.errors import ConfigError, TriviumError
from trivium.infer import DataType
from trivium.repository.file_kinds import wrong_kind
from trivium.repository.layout import ModelFolder, check_name
from trivium.repository.plan import PlanOptions, problems_of
from trivium.repository.versions import version_folders
from trivium.sources import packaged

CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

_FOREST_FILES: Final = {".ubj": "xgboost.ubj", ".json": "xgboost.json", ".txt": "model.txt", ".tl": "checkpoint.tl", ".model": "xgboost.model"}

_PYTHON_MODEL: Final = '''"""{name}: gives back what it gets. See Triton's Python back end for all a model may do."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Called once, before the first request."""

    def execute(self, requests):
        """One response for each request of the batch."""
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", array.astype(np.float32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses

    def finalize(self):
        """Called once, when the model is unloaded."""
'''

_PYTHON_CONFIG: Final = """backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""


@click.group(name="init", context_settings=CONTEXT)
def command() -> None:
    """Lay out a model repository for a model: DIR/<name>/<version>/<file>.

    A name that is there already gets a further version. Serve it with `trivium serve --model-repository DIR`.
    """


@command.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the model; default: that of the file.")
def onnx(*, file: Path, directory: Path, name: str) -> None:
    """FILE is an ONNX model, or a folder that holds `model.onnx` and its weights. Its inputs and outputs are read from it."""
    _check_kind(file, "model.onnx")
    version = _new_version(directory, name or file.stem)
    _copy(file, version / "model.onnx")
    _done(version, directory)


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the model; default: that of the file.")
@click.option("--input", "inputs", multiple=True, metavar="NAME:TYPE:DIMS", help="As in x:FP32:3,224,224, without the batch.")
@click.option("--output", "outputs", multiple=True, metavar="NAME:TYPE:DIMS", help="As in y:FP32:1000.")
@click.option("--max-batch-size", default=8, show_default=True, help="0: the model has no batch dimension.")
def torch(*, file: Path, directory: Path, name: str, inputs: Sequence[str], outputs: Sequence[str], max_batch_size: int) -> None:
    """FILE is an exported program (.pt2), which says what its inputs are, or a TorchScript model (.pt), which doesn't: name them."""
    tensors = _tensors("input", inputs) + _tensors("output", outputs)
    is_exported = file.suffix == ".pt2"
    target = "model.pt2" if is_exported else "model.pt"
    _check_kind(file, target)
    if not is_exported and not (inputs and outputs):
        raise ConfigError(f"{file}: TorchScript doesn't say what its inputs are: name them with --input and --output", param="input")
    batching = "dynamic_batching { }\n" if max_batch_size > 1 else ""
    config = f'backend: "pytorch"\nmax_batch_size: {max_batch_size}\n{tensors}{batching}' if tensors else ""
    version = _new_version(directory, name or file.stem, config)
    _copy(file, version / target)
    _done(version, directory)


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="", help="Name of the model; default: that of the file.")
def forest(*, file: Path, directory: Path, name: str) -> None:
    """FILE is a forest: XGBoost (.json, .ubj), LightGBM (.txt) or a treelite checkpoint (.tl)."""
    target = _FOREST_FILES.get(file.suffix)
    if target is None:
        raise ConfigError(f"{file}: a forest ends in one of {', '.join(_FOREST_FILES)}", param="file")
    _check_kind(file, target)
    version = _new_version(directory, name or file.stem)
    _copy(file, version / target)
    _done(version, directory)


@command.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="my_model", show_default=True, help="Name of the model.")
def python(*, directory: Path, name: str) -> None:
    """A model.py to fill in, with its configuration. Serve it with --allow-python-models."""
    version = _new_version(directory, name, _PYTHON_CONFIG)
    (version / "model.py").write_text(_PYTHON_MODEL.format(name=name))
    _done(version, directory, flags=" --allow-python-models")


@command.command()
@click.argument("words", metavar="[MODEL] DIR", nargs=-1, required=True)
@click.option("--name", default="", help="Name of the model; default: the last part of MODEL.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An engine argument, as in max_model_len=4096; may be repeated.")
def llm(*, words: Sequence[str], name: str, settings: Sequence[str]) -> None:
    """MODEL is a language model: a hub name, a folder, a .gguf file; without it, the packaged one. It stays where it is."""
    if len(words) > 2:
        raise click.UsageError("one model and one folder, please")
    # An empty name is the packaged model's, as everywhere.
    model, directory = (words[0] if len(words) == 2 else "") or packaged.NAME, Path(words[-1])
    named = str(Path(model).resolve()) if Path(model).exists() else model
    arguments: dict[str, object] = {"model": named, **dict(map(_argument, settings))}
    version = _new_version(directory, name or (Path(model).stem if model.endswith(".gguf") else Path(model).name))
    (version / "model.json").write_text(json.dumps(arguments, indent=2) + "\n")
    _done(version, directory)


def _new_version(directory: Path, name: str, config: str = "") -> Path:
    """An empty folder for a version: 1, or one more than the highest there is. Raises `ConfigError`."""
    try:
        check_name(name)
    except TriviumError as error:
        raise ConfigError(error.message, param="name") from None
    model = directory / name
    model.mkdir(parents=True, exist_ok=True)
    if config and not (model / "config.pbtxt").exists():
        (model / "config.pbtxt").write_text(config)
    version = model / str(max(version_folders(model), default=0) + 1)
    version.mkdir()
    return version


def _check_kind(file: Path, target: str) -> None:
    """Raises `ConfigError` for a file that can't be what `target`, its name in the repository, says."""
    wrong = wrong_kind(file, target)
    if wrong:
        raise ConfigError(f"{file} {wrong}", param="file")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _tensors(kind: str, entries: Sequence[str]) -> str:
    """Lines of a configuration from `NAME:TYPE:DIMS`. Raises `ConfigError`."""
    lines: list[str] = []
    for entry in entries:
        match = re.fullmatch(r"([^:\"\\]+):([A-Za-z0-9]+):(-?\d+(?:,-?\d+)*)", entry)
        if match is None or match[2].upper() not in {*DataType, "STRING"}:
            types = ", ".join(DataType)
            raise ConfigError(f"--{kind} must be NAME:TYPE:DIMS as in x:FP32:3,224,224, got {entry!r}; types: {types}", param=kind)
        datatype = "STRING" if match[2].upper() == "BYTES" else match[2].upper()
        lines.append(f'{kind} [ {{ name: "{match[1]}" data_type: TYPE_{datatype} dims: [ {match[3].replace(",", ", ")} ] }} ]\n')
    return "".join(lines)


def _argument(entry: str) -> tuple[str, object]:
    key, equals, text = entry.partition("=")
    if not equals:
        raise ConfigError(f"--set must be KEY=VALUE, got {entry!r}", param="set")
    try:
        value: object = json.loads(text)
    except ValueError:
        value = text
    return key.replace("-", "_"), value


def _done(version: Path, directory: Path, *, flags: str = "") -> None:
    folder = ModelFolder(version.parent.name, directory, version.parent)
    for problem in problems_of(folder, PlanOptions()):
        click.echo(f"warning: {problem}", err=True)
    click.echo(str(version))
    click.echo(f"serve it with: trivium serve --model-repository {directory}{flags}", err=True)

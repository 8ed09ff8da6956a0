"""Forests of decision trees (Triton's FIL back end): XGBoost JSON and UBJSON, LightGBM text, treelite checkpoints; computed by treelite."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import treelite
import treelite.gtil

from trivium.errors import InvalidRequest, ModelLoadError
from trivium.infer import DataType
from trivium.protocol.worker_messages import InstanceSetup, Setup
from trivium.worker.completion import Port, complete
from trivium.worker.files import boolean, integer, model_file, parameters_of
from trivium.worker.link import Link
from trivium.worker.native import NativeInstance
from trivium.worker.tensors import Array

INPUT: Final = "input__0"
OUTPUT: Final = "output__0"
MAX_FILE_SIZE: Final = 8 * 2**30
PARSE_FACTOR: Final = 64
"""A parser may take this many times the file's size (text is several times larger than the trees, buffers double), and `PARSE_MARGIN` more."""
PARSE_MARGIN: Final = 2**30

_FILES: Final = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
_SUFFIXES: Final = {".json": "xgboost_json", ".ubj": "xgboost_ubj", ".txt": "lightgbm", ".tl": "treelite_checkpoint", ".model": "xgboost"}
_CLASSIFIERS: Final = ("kBinaryClf", "kMultiClf")
_TASKS: Final = ("kBinaryClf", "kRegressor", "kMultiClf", "kLearningToRank", "kIsolationForest")


def load(setup: Setup) -> ForestModel:
    """Raises `ModelLoadError`."""
    config: dict[str, Any] = json.loads(setup.config_json)
    parameters = parameters_of(config, setup.settings)
    kind = parameters.get("model_type", "")
    if kind and kind not in _FILES:
        raise ModelLoadError(f"model_type '{kind}' is not known; there are {', '.join(_FILES)}")
    path = model_file(setup, config, *([_FILES[kind]] if kind else _FILES.values()))
    if path.suffix not in _SUFFIXES and not kind:
        raise ModelLoadError(f"{path.name}: which kind of forest this is must be said by the parameter model_type ({', '.join(_FILES)})")
    return ForestModel(setup, config, parameters, _parse(path, kind or _SUFFIXES[path.suffix], parameters))


class ForestModel:
    """See `runtime.Model`. The instances share the trees.

    Parameters, as in Triton: `model_type`, `predict_proba`, `is_classifier` (or `output_class`), `threshold`, `xgboost_allow_unknown_field`;
    and `num_threads` of one batch, 1 if not given.
    """

    def __init__(self, setup: Setup, config: dict[str, Any], parameters: dict[str, str], forest: treelite.Model) -> None:
        self._config = config
        self._forest = forest
        header = forest.get_header_accessor()
        if header.get_field("num_target")[0] != 1:
            raise ModelLoadError("forests with more than one target are not supported")
        task = _TASKS[int(header.get_field("task_type")[0])]
        self._num_features = int(header.get_field("num_feature")[0])
        self._num_classes = max(2, int(header.get_field("num_class")[0])) if task in _CLASSIFIERS else 1
        self._num_threads = integer(parameters, "num_threads", 1)
        if "treeshap_output" in parameters:
            raise ModelLoadError("parameter 'treeshap_output' is not supported")
        self._mode = _mode(parameters, task)
        self._threshold = _threshold(parameters)
        inputs = [Port(INPUT, DataType.FP32, (-1, self._num_features))]
        width = self._num_classes if self._mode == "probabilities" and self._num_classes > 2 else 1
        self._width = _given_width(config) or width
        if self._width != width and not (self._mode == "probabilities" and self._num_classes == 2 and self._width == 2):
            raise ModelLoadError(f"output '{OUTPUT}' has {self._width} values in the configuration; the model gives {width}")
        complete(config, inputs, [Port(OUTPUT, DataType.FP32, (-1, self._width))], setup)
        self.config_json = json.dumps(config)

    def create_instance(self, setup: InstanceSetup, link: Link) -> NativeInstance:
        if setup.kind == "GPU":
            raise ModelLoadError("forests run on the CPU: set instance_group { kind: KIND_CPU }")
        return NativeInstance(self, self._config, link)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Mapping[str, Array]:
        """See `native.Session`."""
        rows = inputs[INPUT]
        if rows.ndim != 2 or rows.shape[1] != self._num_features:
            raise InvalidRequest(f"input '{INPUT}' must have {self._num_features} features, got shape {list(rows.shape)}")
        if rows.shape[0] == 0:
            return {OUTPUT: np.empty((0, self._width), np.float32)}
        data = rows.astype(self._forest.input_type, copy=False)
        found = treelite.gtil.predict(self._forest, data, nthread=self._num_threads).reshape(rows.shape[0], -1)
        return {OUTPUT: np.ascontiguousarray(self._shape(found), np.float32)}

    def _shape(self, found: Array) -> Array:
        """`found`: [rows, 1 or classes]; a binary forest gives the probability of the second class or of both."""
        if self._mode == "raw":
            return found
        is_binary = self._num_classes == 2
        if self._mode == "class":
            positive = found[:, -1:]
            return positive > self._threshold if is_binary else found.argmax(1, keepdims=True)
        if is_binary and found.shape[1] != self._width:
            positive = found[:, -1:]
            return positive if self._width == 1 else np.concatenate([1 - positive, positive], 1)
        return found


def _mode(parameters: dict[str, str], task: str) -> str:
    """`class`, `probabilities` or `raw` (values of a regression)."""
    proba = boolean(parameters, "predict_proba", default=False)
    names = [name for name in ("is_classifier", "output_class") if name in parameters]
    wants_class = boolean(parameters, names[0], default=False) if names else proba
    if (wants_class or proba) and task not in _CLASSIFIERS:
        raise ModelLoadError(
            f"the forest is no classifier ({task.removeprefix('k')}): remove predict_proba and {names[0] if names else 'is_classifier'}"
        )
    if proba:
        return "probabilities"
    # Without a word in the configuration a classifier answers with classes.
    return "class" if wants_class or (not names and task in _CLASSIFIERS) else "raw" if task not in _CLASSIFIERS else "probabilities"


def _threshold(parameters: dict[str, str]) -> float:
    text = parameters.get("threshold", "0.5")
    try:
        return float(text)
    except ValueError:
        raise ModelLoadError(f"parameter 'threshold' must be a number, not {text!r}") from None


def _given_width(config: dict[str, Any]) -> int:
    output = next((tensor for tensor in config.get("output", []) if tensor["name"] == OUTPUT), None)
    dims = [int(dim) for dim in (output or {}).get("dims", [])]
    return dims[-1] if dims and dims[-1] > 0 else 0


# -- reading files ----------------------------------------------------------------------------------------------------------------


def _parse(path: Path, kind: str, parameters: dict[str, str]) -> treelite.Model:
    size = path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise ModelLoadError(f"{path.name} has {size} bytes; at most {MAX_FILE_SIZE} are read")
    allows_unknown = boolean(parameters, "xgboost_allow_unknown_field", default=False)
    try:
        with _limited_memory(PARSE_FACTOR * size + PARSE_MARGIN):
            match kind:
                case "lightgbm":
                    return treelite.frontend.load_lightgbm_model(path)
                case "treelite_checkpoint":
                    return treelite.Model.deserialize(path)
                case "xgboost_json":
                    return treelite.frontend.load_xgboost_model(path, format_choice="json", allow_unknown_field=allows_unknown)
                case "xgboost_ubj":
                    return treelite.frontend.load_xgboost_model(path, format_choice="ubjson", allow_unknown_field=allows_unknown)
                case _:
                    return treelite.frontend.load_xgboost_model(path, format_choice="inspect", allow_unknown_field=allows_unknown)
    except (treelite.TreeliteError, ValueError, MemoryError) as error:
        text = str(error).replace(str(path), path.name).strip().splitlines()
        raise ModelLoadError(f"{path.name} can't be read as {kind}: {text[0] if text else type(error).__name__}") from None


@contextlib.contextmanager
def _limited_memory(extra: int) -> Iterator[None]:
    """A file whose counts are lies makes the parser fail, not the machine run out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + extra
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

"""Back ends: the platforms they go by, the files by which a folder without configuration shows which one it is for, their defaults."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from trivium.protocol.model_config import ModelConfig
from trivium.repository.config_text import BadModelConfig
from trivium.repository.versions import version_folders
from trivium.sources.model_folder import find_model

ENSEMBLE: Final = "ensemble"
LLM_BACKENDS: Final = ("llm", "vllm")
"""Trivium's own engine, under its name and under that of Triton's back end whose layout it takes."""

BACKENDS: Final = ("fil", "llm", "onnxruntime", "python", "pytorch", "tensorflow", "tensorrt", "vllm")

PLATFORMS: Final = MappingProxyType(
    {
        "onnxruntime_onnx": "onnxruntime",
        "pytorch_libtorch": "pytorch",
        "tensorflow_graphdef": "tensorflow",
        "tensorflow_savedmodel": "tensorflow",
        "tensorrt_plan": "tensorrt",
        "torch_aoti": "pytorch",
    }
)
"""Triton's older name for a kind of model, to its back end."""

_DEFAULT_PLATFORMS: Final = {"onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch", "tensorrt": "tensorrt_plan"}

_FILES: Final = (
    # In the order they are looked for: name, whether it must be a folder (None: either), back end, platform.
    ("model.savedmodel", True, "tensorflow", "tensorflow_savedmodel"),
    ("model.graphdef", False, "tensorflow", "tensorflow_graphdef"),
    ("model.plan", False, "tensorrt", "tensorrt_plan"),
    ("model.onnx", None, "onnxruntime", "onnxruntime_onnx"),
    ("model.pt", False, "pytorch", "pytorch_libtorch"),
    ("model.pt2", False, "pytorch", "torch_aoti"),
    ("model.py", False, "python", ""),
    ("xgboost.json", False, "fil", ""),
    ("xgboost.ubj", False, "fil", ""),
    ("xgboost.model", False, "fil", ""),
    ("model.txt", False, "fil", ""),
    ("checkpoint.tl", False, "fil", ""),
    ("model.json", False, "vllm", ""),
)

_DEFAULT_FILES: Final = {"python": "model.py", "vllm": "model.json", "llm": "model.json"}
_PLATFORM_FILES: Final = {platform: name for name, _, _, platform in _FILES if platform}
_FOREST_FILES: Final = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}


def complete_backend(config: ModelConfig, model: Path) -> None:
    """Fill in `backend`, `platform` and `default_model_filename` from each other or, where none is given, from the first version's files.

    Raises `BadModelConfig` when nothing tells the back end.
    """
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return
    if not config.backend:
        _find_backend(config, model)
    if not config.platform and config.backend == "tensorflow":
        config.platform = "tensorflow_graphdef" if config.default_model_filename == "model.graphdef" else "tensorflow_savedmodel"
    if not config.platform:
        config.platform = _platform(config, model)
    if not config.default_model_filename:
        config.default_model_filename = _PLATFORM_FILES.get(config.platform) or _DEFAULT_FILES.get(config.backend) or _forest_file(config, model)


def _find_backend(config: ModelConfig, model: Path) -> None:
    if config.platform in PLATFORMS:
        config.backend = PLATFORMS[config.platform]
        return
    if config.platform:
        return  # an unknown platform: validation says so
    if config.default_model_filename:
        found = next((entry for entry in _FILES if entry[0] == config.default_model_filename), None)
    else:
        found = _look(model)
    if found is not None:
        name, _, config.backend, config.platform = found
        config.default_model_filename = name
        return
    suffix = config.name.partition(".")[2]
    if not version_folders(model):
        raise BadModelConfig(no_version(config.name, model))
    if not suffix or config.default_model_filename:
        raise BadModelConfig(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in model configuration. "
            f"Expected model name of the form 'model.<backend_name>'.{_looked_for(config, model)}"
        )
    config.backend = suffix
    config.default_model_filename = f"model.{suffix}"


def no_version(name: str, model: Path) -> str:
    """Triton's words for a model without a version to serve, and what to do about a model's file that lies beside where versions should be."""
    text = f"at least one version must be available under the version policy of model '{name}'"
    versions = version_folders(model)
    if versions:
        return f"{text}; there are {', '.join(map(str, versions))}"
    misplaced = next((file for file, *_ in _FILES if (model / file).exists()), "")
    if not misplaced and find_model(model) is not None:
        misplaced = "the model"
    return f"{text}; {misplaced} belongs in {name}/1" if misplaced else f"{text}; there is no folder {name}/1, nor one of another whole number"


def _looked_for(config: ModelConfig, model: Path) -> str:
    version = _first_version(model)
    if version is None or config.default_model_filename:
        return ""
    names = ", ".join(name for name, *_ in _FILES)
    return f" {config.name}/{version.name} has none of {names}, and no language model."


def _first_version(model: Path) -> Path | None:
    return next(iter(version_folders(model).values()), None)


def _look(model: Path) -> tuple[str, bool | None, str, str] | None:
    version = _first_version(model)
    if version is None:
        return None
    for name, is_folder, backend, platform in _FILES:
        path = version / name
        if path.exists() and is_folder in (None, path.is_dir()):
            return name, is_folder, backend, platform
    return ("", None, "llm", "") if find_model(version) is not None else None


def _platform(config: ModelConfig, model: Path) -> str:
    if config.backend == "pytorch" and not config.default_model_filename:
        version = _first_version(model)
        if version is not None and (version / "model.pt2").exists() and not (version / "model.pt").exists():
            return "torch_aoti"
    if config.backend == "pytorch" and config.default_model_filename.endswith(".pt2"):
        return "torch_aoti"
    return _DEFAULT_PLATFORMS.get(config.backend, "")


def _forest_file(config: ModelConfig, model: Path) -> str:
    if config.backend != "fil":
        return ""
    kind = config.parameters["model_type"].string_value if "model_type" in config.parameters else ""
    if kind:
        return _FOREST_FILES.get(kind, "")
    found = _look(model)
    return found[0] if found is not None and found[2] == "fil" else _FOREST_FILES["xgboost"]

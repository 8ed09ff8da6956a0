"""From what the user named to `ModelFiles`: the packaged model, a folder, a .gguf file or a hub name, which may name one of several
quantizations in GGUF files (owner/model:Q4_K_M)."""

from __future__ import annotations

from pathlib import Path

from trivium.config import ModelSettings
from trivium.errors import ConfigError, ModelLoadError
from trivium.sources import bucket, modelscope, packaged
from trivium.sources import hub as huggingface
from trivium.sources.bucket import Progress
from trivium.sources.files import ModelFiles
from trivium.sources.gguf_config import generation_config_from_gguf, model_config_from_gguf
from trivium.sources.gguf_file import read_gguf
from trivium.sources.objects import is_url
from trivium.sources.paths import child_path, read_json_child
from trivium.sources.quantization_config import separate_quantization_config
from trivium.sources.wanted import INDEX_FILE, gguf_parts, is_later_gguf_part, weight_map


def resolve(
    model: str, revision: str | None = None, *, with_weights: bool = True, hub: str = "huggingface", progress: Progress | None = None
) -> ModelFiles:
    """Finds the files of `model`; an empty name, and the packaged default model's own, mean that one.

    `with_weights=False` leaves the weights of a remote model where they are (for dummy weights). `hub` says whose names hub names are:
    "huggingface" (or its mirror, by `HF_ENDPOINT`) or "modelscope".
    Raises `ConfigError` for a name that can't be one, `ModelLoadError` for files that are missing or unreadable.
    """
    if not model or (model == packaged.NAME and not Path(model).exists() and packaged.packaged_model() is not None):
        return _from_gguf(packaged.NAME, packaged.require_packaged_model())
    if is_url(model):
        if revision is not None:
            raise ConfigError("A model at a URL has no revisions.", param="revision")
        return _from_path(model, bucket.download_model(model, with_weights=with_weights, progress=progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_folder(model, path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{model} is a file but no .gguf; give the folder of a model.", param="model")
        return _from_gguf(model, path)
    if path.suffix == ".gguf" or path.is_absolute() or model.startswith((".", "~")):
        raise ModelLoadError(f"There is no file or folder {model}.")
    source = modelscope if hub == "modelscope" else huggingface
    gguf_name = huggingface.split_gguf_name(model)
    if gguf_name is not None:
        return _from_gguf(model, source.download_gguf(gguf_name[0], revision, gguf_name[1]))
    return _from_folder(model, source.download_model(model, revision, with_weights=with_weights))


def resolve_for(settings: ModelSettings, *, progress: Progress | None = None) -> ModelFiles:
    """`resolve` of the model that `settings` name."""
    with_weights = settings.load_format != "dummy"
    return resolve(settings.model, settings.revision, with_weights=with_weights, hub=settings.hub, progress=progress)


def resolve_tokenizer(name: str, *, hub: str = "huggingface") -> Path:
    """The folder of a tokenizer's files (or the .gguf file that holds one). Raises `ConfigError` for what can't be one."""
    if is_url(name):
        return bucket.download_tokenizer(name)
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists() or path.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(f"tokenizer {name} is no folder, .gguf file, hub name or URL.", param="tokenizer")
    return (modelscope if hub == "modelscope" else huggingface).download_tokenizer(name, None)


def _from_path(name: str, path: Path) -> ModelFiles:
    return _from_folder(name, path) if path.is_dir() else _from_gguf(name, path)


def _from_folder(name: str, folder: Path) -> ModelFiles:
    config = read_json_child(folder, "config.json")
    if config is None:
        return _from_gguf(name, _only_gguf(folder))
    if "quantization_config" not in config and (separate := separate_quantization_config(folder)) is not None:
        config = {**config, "quantization_config": separate}
    return ModelFiles(
        name=name,
        kind="folder",
        path=folder,
        config=config,
        generation_config=read_json_child(folder, "generation_config.json") or {},
        weight_files=_safetensors_files(folder),
    )


def _only_gguf(folder: Path) -> Path:
    """The model file of a folder without config.json, if exactly one is there."""
    first_parts = [path for path in sorted(folder.glob("*.gguf")) if path.is_file() and not is_later_gguf_part(path.name)]
    if not first_parts:
        raise ModelLoadError(f"{folder} has neither a config.json nor a .gguf file.")
    if len(first_parts) > 1:
        raise ModelLoadError(f"{folder} has several .gguf files; name one of them: {', '.join(path.name for path in first_parts)}")
    return first_parts[0]


def _safetensors_files(folder: Path) -> tuple[Path, ...]:
    index = read_json_child(folder, INDEX_FILE)
    names = _loose_names(folder) if index is None else sorted(set(weight_map(folder / INDEX_FILE, index).values()))
    found = [(name, child_path(folder, name)) for name in names]
    missing = [name for name, path in found if path is None]
    if missing:
        raise ModelLoadError(f"{folder / INDEX_FILE} names files that are not there: {', '.join(missing)}")
    return tuple(path for _, path in found if path is not None)


def _loose_names(folder: Path) -> list[str]:
    """Without an index: the standard single file, else every file but Mistral's consolidated copy and adapters."""
    if child_path(folder, "model.safetensors") is not None:
        return ["model.safetensors"]
    return [path.name for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith(("consolidated", "adapter_"))]


def _from_gguf(name: str, path: Path) -> ModelFiles:
    parts = _gguf_parts(path)
    gguf = read_gguf(parts[0])
    tensor_names = {name for part in parts[1:] for name in read_gguf(part).tensors} | set(gguf.tensors)
    return ModelFiles(
        name=name,
        kind="gguf",
        path=parts[0],
        config=model_config_from_gguf(gguf, tensor_names),
        generation_config=generation_config_from_gguf(gguf),
        weight_files=tuple(parts),
    )


def _gguf_parts(path: Path) -> list[Path]:
    """All files of a model split by llama.cpp's gguf-split (name-00001-of-00003.gguf), or just the one."""
    parts = [path.with_name(name) for name in gguf_parts(path.name)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelLoadError(f"{path} is one of {path.stem[-5:]} parts, and these are missing: {', '.join(missing[:5])}")
    return parts

"""`WeightSource`: named tensors under Hugging Face names, whatever file format they come from."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from trivium.errors import ModelLoadError, UnsupportedWeightFormat
from trivium.sources.files import ModelFiles


class WeightSource(Protocol):
    """Tensors of a checkpoint. Opening checks every header; tensor data is read by `load` alone.

    `total_bytes`: of tensor data in the files. `names`: in the order of the files, so that reading them in turn reads the disk in turn.
    `load`: CPU tensor; it may share the file's pages, so it is only valid while the file stays as it is. `file_of`: for error messages.
    The last three raise `WeightError` for a name that is not there.
    """

    @property
    def total_bytes(self) -> int: ...
    def names(self) -> list[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def load(self, name: str) -> Tensor: ...
    def file_of(self, name: str) -> str: ...


PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_source(files: ModelFiles) -> WeightSource:
    """Opens and checks the weight files. Raises `WeightError` or `UnsupportedWeightFormat`."""
    if not files.weight_files:
        raise _no_weights(files)
    if files.kind == "gguf":
        from trivium.weights.gguf import GGUFSource

        return GGUFSource(files.weight_files)
    from trivium.weights.safetensors import SafetensorsSource

    return SafetensorsSource.from_folder(files.path, files.weight_files)


def _no_weights(files: ModelFiles) -> ModelLoadError:
    pickles = sorted(path.name for path in files.path.iterdir() if path.suffix in PICKLE_SUFFIXES) if files.path.is_dir() else []
    if pickles:
        return UnsupportedWeightFormat(
            f"{files.path} has its weights only as {pickles[0]}, a format that can hold code and is never read. Convert them to safetensors."
        )
    return ModelLoadError(f"{files.path} has no .safetensors files.")

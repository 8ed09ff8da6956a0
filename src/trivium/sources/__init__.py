"""Where models come from: folder, package, .gguf file or hub. Torch-free."""

from __future__ import annotations

from trivium.sources.files import ModelFiles
from trivium.sources.resolve import resolve

__all__ = ["ModelFiles", "resolve"]

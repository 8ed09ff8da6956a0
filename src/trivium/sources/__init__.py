"""Where models come from: folder, package, .gguf file, hub, mirror or bucket. Torch-free."""

from __future__ import annotations

from trivium.sources.files import ModelFiles
from trivium.sources.resolve import resolve, resolve_for, resolve_tokenizer

__all__ = ["ModelFiles", "resolve", "resolve_for", "resolve_tokenizer"]

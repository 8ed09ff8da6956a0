"""`ModelFiles`: what a model is made of on disk, found by `sources.resolve` and read by everything above."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A model's files. `config` is in the form of a Hugging Face config.json; for GGUF it is made from the metadata."""

    name: str
    kind: Literal["folder", "gguf"]
    path: Path
    """The folder, or the (first) .gguf file."""
    config: dict[str, Any] = field(repr=False)
    generation_config: dict[str, Any] = field(default_factory=dict, repr=False)
    """Sampling defaults the model comes with; empty if it has none."""
    weight_files: tuple[Path, ...] = ()
    """In the order they are read; empty if the folder has none that can be read."""
